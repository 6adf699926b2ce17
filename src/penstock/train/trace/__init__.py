"""What training will take of memory, said before it starts: a step is traced on tensors without numbers.

`allocations` follows the memory of tensors, `shapes` says what operations give, `heap` how the C library's heap grows
with them, and `fake_session` puts weights without numbers into a session for as long as it is traced.
"""
