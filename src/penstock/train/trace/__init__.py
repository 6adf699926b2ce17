"""What training will take of memory, said before it starts: a step is traced on tensors without numbers.

`fake_session` puts weights without numbers into a session for as long as it is traced, and `batches` makes the batches.
`allocations` records what tensors allocate and free, `shapes` says what operations give, and `inference` traces the
validation. `allocators` simulates torch's caching allocator and the heap of the C library; `libraries` says what GPU
libraries take for themselves, and `kernel_rates` how fast a GPU is.
"""
