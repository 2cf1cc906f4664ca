"""Offline discovery of the rubric vocabulary from stored rollouts: seven steps, one module each.

``sample`` → ``propose`` → ``normalise`` → ``merge`` → ``screen`` → ``group`` → ``freeze``. Each is a program
(``python -m rubric_discovery.<step> --config FILE --out DIR``) that reads the files of the steps before it and writes
its own, with a file ``<step>.yaml`` that says from what. The paper says that discovery is offline and by a stronger
model [paper]; the steps, prompts and screens are ours. May import ``rised``; knows neither Snakemake nor Slurm.
"""
