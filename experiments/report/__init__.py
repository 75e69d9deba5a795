"""The report that compares runs."""
