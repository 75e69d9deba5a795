"""Numbers from the authors' code, and the package's own pieces held against them."""
