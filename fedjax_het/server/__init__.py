"""The server's parts of an algorithm: aggregators, weightings, summaries and optimizers."""
