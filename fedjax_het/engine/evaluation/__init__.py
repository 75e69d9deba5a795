"""Scores of models on held-out examples, and their statistics over clients."""
