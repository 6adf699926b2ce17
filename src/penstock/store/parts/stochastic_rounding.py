"""Kernels that narrow rows while gathering them, rounding each value up or down at random without bias.

A value between two representable ones becomes the upper one with the probability of its distance from the lower one, so
that its mean is the value itself. Random bits are a hash of a key, the row's part and number, and the column: a row is
rounded alike under one key, whoever sends it, and with whichever other rows and columns.
"""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import draw, key_of, unit
from penstock.kernels import njit
from penstock.store.parts.narrow import scale_of

_LARGEST = 65504.0
_LEAST_EXPONENT = np.uint32(0x1B000000)
"""Below 2**-73 a value becomes 0: the smallest float16 would have a probability below 2**-49."""


class StochasticRounding(NamedTuple):
    """The keys that a reader rounds by: of the run's seed, the field and, unless rows are kept, the epoch."""

    seed: int
    rows_are_kept: bool = False
    """Whether rows are kept for later epochs. A kept row must have the bits that it has on the wire, whenever it came,
    so each row then has one rounding for the whole run.
    """

    def key(self, field: str, epoch: int | None) -> int:
        """The key of a pull of a field's rows for a batch of an epoch; None: for no batch."""
        when = "" if epoch is None or self.rows_are_kept else str(epoch)
        return int(key_of(self.seed, "rounding {} {}", field, when))


@njit(nogil=True, cache=True, writes=("out",))
def gather_half(
    table: Array, first: int, rows: Array, key: np.uint64, part: int, numbers: Array, columns: Array, out: Array
) -> bool:
    """float16 bits of some columns of some rows; False if a finite value is beyond the largest float16.

    `columns` are the numbers of the columns from `first` on, and `numbers` those of the rows in their part.
    """
    width = out.shape[1]
    row = np.empty(width, np.float32)
    bits = row.view(np.uint32)
    own, fits = draw(key, np.uint64(part)), True
    for i in range(len(rows)):
        name = draw(own, np.uint64(numbers[i]))
        for k in range(width):
            row[k] = table[rows[i], first + k]
            fits &= not abs(row[k]) > _LARGEST or not np.isfinite(table[rows[i], first + k])
        for k in range(width):
            out[i, k] = _half(bits[k], draw(name, np.uint64(columns[k])))
    return fits


@njit(nogil=True, cache=True)
def _half(bits: np.uint32, random: np.uint64) -> np.uint32:
    """A float32's bits as a float16's, rounded away from zero with the probability of the part that is cut off."""
    sign = (bits >> np.uint32(16)) & np.uint32(0x8000)
    size = bits & np.uint32(0x7FFFFFFF)
    if size >= np.uint32(0x7F800000):
        return sign | (np.uint32(0x7C00) if size == np.uint32(0x7F800000) else np.uint32(0x7E00))
    if size >= np.uint32(0x38800000):
        rounded = size + (np.uint32(random >> np.uint64(32)) & np.uint32(0x1FFF))
        return sign | ((rounded - np.uint32(0x38000000)) >> np.uint32(13))
    if size < _LEAST_EXPONENT:
        return sign
    # Subnormal float16 have no implicit leading one: the whole significand is shifted, by more the smaller the value
    # is.
    shift = np.uint64(126) - (np.uint64(size) >> np.uint64(23))
    whole = np.uint64((size & np.uint32(0x7FFFFF)) | np.uint32(0x800000))
    lowest = (np.uint64(1) << shift) - np.uint64(1)
    return sign | np.uint32((whole + ((random >> np.uint64(1)) & lowest)) >> shift)


@njit(nogil=True, cache=True, writes=("scales", "out"))
def gather_scaled(
    table: Array,
    first: int,
    rows: Array,
    key: np.uint64,
    part: int,
    numbers: Array,
    columns: Array,
    scales: Array,
    out: Array,
) -> bool:
    """int8 of some columns of some rows, and each row's scale; False if a value is not finite."""
    own = draw(key, np.uint64(part))
    for i in range(len(rows)):
        scale = scale_of(table, rows[i], first, out.shape[1])
        if scale < 0:
            return False
        scales[i] = scale
        inverse = 1 / float(scale) if scale > 0 else 0.0
        name = draw(own, np.uint64(numbers[i]))
        for k in range(out.shape[1]):
            chance = unit(draw(name, np.uint64(columns[k])))
            number = np.floor(float(table[rows[i], first + k]) * inverse + chance)
            out[i, k] = np.int8(min(127.0, max(-127.0, number)))
    return True
