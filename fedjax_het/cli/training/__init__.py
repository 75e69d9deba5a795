"""The training loop of a run, its recorder and its terminal output."""
