"""Kernels that narrow rows while gathering them, and widen them while scattering them."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit


def _float32_of_every_half() -> Array:
    """The float32 of each of the 65,536 float16 bit patterns, indexed by the pattern.

    The table is made of integers, because converting signalling NaNs as floating-point numbers raises a warning on
    some processors (ARM) and none on others (x86). A NaN keeps its payload and becomes quiet.
    """
    patterns = np.arange(1 << 16, dtype=np.uint32)
    sign = (patterns & 0x8000) << 16
    exponent = (patterns >> 10) & 0x1F
    fraction = patterns & 0x3FF
    normal = ((exponent + (127 - 15)) << 23) | (fraction << 13)
    special = np.uint32(0x7F800000) | (fraction << 13) | np.where(fraction > 0, np.uint32(0x400000), np.uint32(0))
    # A subnormal float16 is `fraction` times 2**-24, which a float32 holds as a normal number.
    subnormal = (fraction.astype(np.float32) * np.float32(2.0**-24)).view(np.uint32)
    size = np.where(exponent == 0, subnormal, np.where(exponent == 0x1F, special, normal))
    return (sign | size).astype(np.uint32).view(np.float32)


WIDE = _float32_of_every_half()
"""Each float16 as a float32, indexed by its bits: Numba's kernels for the host have no float16."""
_SMALLEST = np.float32(np.finfo(np.float32).tiny)


@njit(nogil=True, cache=True, writes=("out",))
def gather_half(table: Array, first: int, rows: Array, out: Array) -> bool:
    """float16 bits of some columns of some rows, rounded to nearest; False if a finite value is too large."""
    width = out.shape[1]
    row = np.empty(width, np.float32)
    bits = row.view(np.uint32)
    fits = True
    for i in range(len(rows)):
        for k in range(width):
            row[k] = table[rows[i], first + k]
        for k in range(width):
            half = _half(bits[k])
            fits &= (half & np.uint32(0x7FFF)) != np.uint32(0x7C00) or not np.isfinite(table[rows[i], first + k])
            out[i, k] = half
    return fits


@njit(nogil=True, cache=True)
def _half(bits: np.uint32) -> np.uint32:
    """A float32's bits as a float16's, ties to even."""
    sign = (bits >> np.uint32(16)) & np.uint32(0x8000)
    size = bits & np.uint32(0x7FFFFFFF)
    if size > np.uint32(0x7F800000):
        return sign | np.uint32(0x7E00)
    if size >= np.uint32(0x477FF000):
        return sign | np.uint32(0x7C00)
    if size >= np.uint32(0x38800000):
        rounded = size + np.uint32(0xFFF) + ((size >> np.uint32(13)) & np.uint32(1))
        return sign | ((rounded - np.uint32(0x38000000)) >> np.uint32(13))
    if size <= np.uint32(0x33000000):
        return sign
    # Subnormal float16 have no implicit leading one: the whole significand is shifted, by more the smaller the value
    # is.
    shift = np.uint32(126) - (size >> np.uint32(23))
    whole = (size & np.uint32(0x7FFFFF)) | np.uint32(0x800000)
    kept, rest, tie = (
        whole >> shift,
        whole & ((np.uint32(1) << shift) - np.uint32(1)),
        np.uint32(1) << (shift - np.uint32(1)),
    )
    if rest > tie or (rest == tie and (kept & np.uint32(1)) == np.uint32(1)):
        kept += np.uint32(1)
    return sign | kept


@njit(nogil=True, cache=True, writes=("out",))
def place_half(frame: Array, wide: Array, places: Array, out: Array) -> None:
    """`out[places]` of float16 bits; `wide` is WIDE."""
    for i in range(len(places)):
        place = places[i]
        for k in range(out.shape[1]):
            out[place, k] = wide[frame[i, k]]


@njit(nogil=True, cache=True, writes=("scales", "out"))
def gather_scaled(table: Array, first: int, rows: Array, scales: Array, out: Array) -> bool:
    """int8 of some columns of some rows, and each row's scale; False if a value is not finite."""
    for i in range(len(rows)):
        row, scale = rows[i], scale_of(table, rows[i], first, out.shape[1])
        if scale < 0:
            return False
        scales[i] = scale
        inverse = 1 / float(scale) if scale > 0 else 0.0
        for k in range(out.shape[1]):
            out[i, k] = np.int8(min(127.0, max(-127.0, np.rint(float(table[row, first + k]) * inverse))))
    return True


@njit(nogil=True, cache=True)
def scale_of(table: Array, row: int, first: int, width: int) -> np.float32:
    """The scale of a row's int8 values, such that the largest is 127. Negative if a value is not finite."""
    largest = 0.0
    for k in range(width):
        size = abs(float(table[row, first + k]))
        if not size <= 3.4e38:
            return np.float32(-1)
        largest = max(largest, size)
    scale = np.float32(largest / 127)
    return scale if scale >= _SMALLEST else np.float32(0)


@njit(nogil=True, cache=True, writes=("out",))
def place_scaled(frame: Array, scales: Array, places: Array, out: Array) -> None:
    """`out[places]` of int8 rows and their scales."""
    for i in range(len(places)):
        place, scale = places[i], scales[i]
        for k in range(out.shape[1]):
            out[place, k] = scale * np.float32(frame[i, k])
