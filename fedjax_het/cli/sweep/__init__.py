"""Grids of runs, trained one after another or as one program."""
