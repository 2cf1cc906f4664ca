"""Who scores the criteria of a rubric bundle on a group's rollouts: one verifier per file."""
