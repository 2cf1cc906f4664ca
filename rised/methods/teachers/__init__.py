"""What the stop-gradient teacher reads before it scores the stored tokens: one teacher per file."""
