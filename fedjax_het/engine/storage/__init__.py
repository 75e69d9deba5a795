"""Client states off the device, and checkpoints."""
