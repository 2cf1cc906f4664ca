"""rised: rubric-guided selection and self-distillation for agents in several environments.

The library: nouns and pure pieces. It knows neither Snakemake nor Slurm; the verbs live in ``stages/``.
"""

__version__ = "0.1.0"
