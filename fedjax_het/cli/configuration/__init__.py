"""Config files and command-line overrides, and the objects that are built from them."""
