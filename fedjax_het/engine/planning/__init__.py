"""Choice of layout and data placement, by timing and memory budget."""
