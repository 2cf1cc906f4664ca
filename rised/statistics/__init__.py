"""Definitions of what is measured, shared by the training loop's metrics and the analysis."""
