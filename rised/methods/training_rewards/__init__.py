"""The reward that training sees, from an episode and its official reward: one rule per file."""
