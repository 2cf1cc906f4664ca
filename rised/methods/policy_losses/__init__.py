"""Per-token policy-gradient losses: one surrogate per file."""
