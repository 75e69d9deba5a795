"""Server-side parts of an algorithm: aggregators, weightings, summaries and optimizers."""
