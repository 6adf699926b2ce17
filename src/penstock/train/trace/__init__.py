"""Predicts the memory of training before it starts: a step is traced on meta tensors, which have shapes and no values.

`fake_session` gives a session meta weights for as long as it is traced, and `batches` makes the batches. `allocations`
records what tensors allocate and free, `shapes` gives the shapes of results, and `inference` traces the validation.
`allocators` simulates torch's caching allocator and the heap of the C library; `libraries` has the memory that GPU
libraries take for themselves, and `kernel_rates` how fast a GPU is.
"""
