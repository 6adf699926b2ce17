"""What training will take of memory, said before it starts: a step is traced on fake tensors, and its allocations counted.

`allocations` follows the storages of tensors, `caching_allocator` does with them what torch's allocator of a GPU does,
and `fake_session` puts fake weights into a session for as long as it is traced.
"""
