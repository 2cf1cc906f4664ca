"""Per-token losses that pull the student towards its privileged teacher: one loss per file."""
