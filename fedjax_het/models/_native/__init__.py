"""The compiled convolution."""
