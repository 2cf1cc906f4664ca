"""Rule-based detectors, one module per environment; importing a module registers its detectors.

A module whose name begins with an underscore holds helpers and registers nothing.
"""
