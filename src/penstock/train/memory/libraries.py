"""Memory that libraries take for themselves, which no trace of tensors sees: found by measuring, once."""

WORKSPACE = 32 << 20
"""Bytes that a matrix library keeps on a GPU for each stream that it works on, measured on an H200."""
LOADED_ON_HOST = 48 << 20
"""Bytes of code, compiled kernels and buffers of a first step on the host, measured on ARM with two threads."""
