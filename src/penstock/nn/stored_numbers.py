"""Numbers of feature tables as kernels of the host read them: of any stored type, widened to float32 exactly.

Numba's kernels for the host have no 16-bit floats, so these are read by their bits: float16 as uint16, bfloat16 as
int16 (tables of these integers themselves are not read in place).
"""

import platform
from typing import Any

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic, overload

from penstock.graph.arrays import Array
from penstock.kernels import njit

READ_IN_PLACE = (np.float32, np.float16, np.int8)
"""NumPy's types of tables whose numbers kernels read where they lie."""
HAS_HALVES = platform.machine() in ("aarch64", "arm64") or bool(binding.get_host_cpu_features().get("f16c"))
"""Whether the processor widens float16 by itself, as all since about 2012 do; others compute it from the bits."""


def readable(table: Array) -> Array:
    """A table of one of the types `READ_IN_PLACE` as kernels read it."""
    return table.view(np.uint16) if table.dtype == np.float16 else table


def _float_of_bits(typing: Any, bits: Any) -> Any:
    """A float32 with these bits, an uint32's."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


def _widened_half(typing: Any, half: Any) -> Any:
    """The float32 of a float16's bits, an uint16's, by the processor's own instruction."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


_float32_of: Any = intrinsic(_float_of_bits)
_by_processor: Any = intrinsic(_widened_half)


@njit(nogil=True, cache=True)
def _by_bits(half: np.uint16) -> np.float32:
    """The float32 of a float16's bits, exactly and without a branch, so that loops of it vectorise."""
    bits = np.uint32(half)
    exponent = bits & np.uint32(0x7C00)
    # What the float32 of the shifted bits has too little in its exponent is multiplied, subnormal numbers as well;
    # what is infinite or NaN has the largest exponent in both types.
    size = _float32_of((bits & np.uint32(0x7FFF)) << np.uint32(13)) * np.float32(2.0**112)
    special = _float32_of(np.uint32(0x7F800000) | ((bits & np.uint32(0x3FF)) << np.uint32(13)))
    size = special if exponent == np.uint32(0x7C00) else size
    wide: np.float32 = -size if bits & np.uint32(0x8000) else size
    return wide


def stored_number(stored: Any) -> Any:
    """A number of a table as a float32: called from kernels, and compiled for each type that they read."""
    raise NotImplementedError


def _compiled_number(stored):  # type: ignore[no-untyped-def]
    # Numba compares this signature with that of the lambdas, which have no annotations.
    if isinstance(stored, types.Float):
        return lambda stored: stored
    if stored == types.uint16:
        if HAS_HALVES:
            return lambda stored: _by_processor(stored)
        return lambda stored: _by_bits(stored)
    if stored == types.int16:
        return lambda stored: _float32_of(np.uint32(np.uint16(stored)) << np.uint32(16))
    return lambda stored: np.float32(stored)


overload(stored_number)(_compiled_number)
