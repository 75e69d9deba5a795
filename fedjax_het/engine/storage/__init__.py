"""Storage of client states off the device, and checkpoints."""
