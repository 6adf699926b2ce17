"""A rule of a user's own for draws on a device. Triton compiles functions with the globals of their module, so they are
at the top of one that only a machine with Triton imports.
"""

import triton
import triton.language as tl


@triton.jit
def keep_even(key, source, length, held, table_a, table_b, table_c, FANOUT: tl.constexpr):
    """Sources with an even number."""
    return source % 2 == 0


@triton.jit
def weigh_length(source, length, position, held, table_a, table_b, table_c, FANOUT: tl.constexpr):
    """A weight by the length of the list."""
    return length.to(tl.float32) + FANOUT
