"""Numbers from the authors' code, and the parts of the package that are compared with them."""
