"""Private helpers: atomic writes, the cache folder, the float64 context, native kernels, machine memory."""
