"""Rubric bundles of a prompt group: what they are, who writes and verifies them, and which one is kept (METHODS §4)."""
