"""The report, one HTML page that compares runs, with its tables and figures as files beside it."""
