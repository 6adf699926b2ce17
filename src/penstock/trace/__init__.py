"""What computing on tensors without values allocates: the memory of a run is predicted before it starts.

`allocations` records what tensors allocate and free, whose shapes it gives by rule. `allocators` simulates torch's
caching allocator and the heap of the C library; `libraries` has the memory that GPU libraries take for themselves, and
`kernel_rates` how fast a GPU is.
"""
