"""Command lines that train, compare, report and measure."""
