"""Where stages run: a profile for Snakemake, the site's settings, and the launcher that submits a stage as a job.

It knows commands, files and jobs, and nothing of reinforcement learning.
"""
