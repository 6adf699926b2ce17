"""Kernels that only kernels call: compiled without the way in from Python, which for tuples of arrays is most of it."""

from typing import TYPE_CHECKING, TypeVar

from penstock.graph.arrays import Array
from penstock.kernels import njit

if TYPE_CHECKING:
    Kernel = TypeVar("Kernel")

    def nested(kernel: Kernel) -> Kernel:
        """A kernel that only kernels call."""

else:
    nested = njit(nogil=True, cache=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


@nested
def copy_to(target: Array, source: Array) -> None:
    """Copy an array; a loop compiles in a fraction of the time of an assignment to a slice."""
    for k in range(source.shape[0]):
        target[k] = source[k]
