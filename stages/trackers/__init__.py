"""Other people's experiment trackers: each file registers one, and imports its package only when it is opened."""
