"""From rewards to advantages: one normalisation per file."""
