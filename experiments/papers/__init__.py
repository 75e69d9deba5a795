"""The papers' tables and figures as data: the runs, the numbers read from them, and the printed values."""
