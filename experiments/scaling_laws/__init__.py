"""Scaling laws of client counts: accuracy and cost over clients per round and over the number of clients."""
