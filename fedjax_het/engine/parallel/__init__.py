"""The axes of clients and of runs on devices: layouts, shardings and the compilation of programs for them."""
