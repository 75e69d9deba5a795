"""Measurements of rounds, aggregators, streaming and scaling."""
