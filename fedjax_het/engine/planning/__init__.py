"""The choice of a layout and of what stays on the device, by timing and by a memory budget."""
