"""Verdicts on the headline claims of papers, by experiments of a smaller size with tuned baselines."""
