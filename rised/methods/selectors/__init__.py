"""Which prompt groups of a step are trained on: one selector per file."""
