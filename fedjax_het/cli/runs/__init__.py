"""Run directories: their files, their inspection, and what is read from them."""
