"""The training loop of a run, what it records, and what it prints."""
