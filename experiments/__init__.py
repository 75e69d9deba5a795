"""The experiments of the project: papers, claims, trade-offs, scaling laws, benchmarks (python -m experiments.NAME)."""
