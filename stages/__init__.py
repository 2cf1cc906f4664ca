"""The verbs: one thin program per stage, each runnable alone with ``python -m stages.NAME --help``."""
