"""Who writes the rubric bundles of a prompt group: one writer per file."""
