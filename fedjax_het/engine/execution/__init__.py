"""Execution of compiled rounds, with everything on the device or streamed from the host."""
