"""Which rubrics the next training rollouts are told to avoid: one rule per file."""
