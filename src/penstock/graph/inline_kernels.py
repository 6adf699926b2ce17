"""Kernels inside kernels: inlined by the compiler, over arrays whose references are not counted.

Numba counts references of an array whenever a kernel passes it to another, with an atomic operation each that costs
more than the work of a small kernel. An array without an owner is not counted, and what is inlined as machine code (not
as source, which would count references again) passes nothing. Together they make an event several times cheaper.
"""

from typing import TYPE_CHECKING, Any, TypeVar

from numba.core import cgutils as _untyped
from numba.extending import intrinsic

from penstock.graph.arrays import Array
from penstock.kernels import njit

_structures: Any = _untyped


def _borrowed(typingctx: Any, array: Any) -> Any:
    """The same array without an owner. The caller must hold the original for as long as this is used."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = _structures.create_struct_proxy(signature.args[0])(context, builder, value=arguments[0])
        view.meminfo = _structures.get_null_value(view.meminfo.type)
        view.parent = _structures.get_null_value(view.parent.type)
        return view._getvalue()

    return array(array), generate


if TYPE_CHECKING:
    Kernel = TypeVar("Kernel")

    def borrowed(array: Array) -> Array:
        """As `_borrowed`, within a kernel."""

    def inner(kernel: Kernel) -> Kernel:
        """A kernel that only kernels call."""

else:
    borrowed = intrinsic(_borrowed)
    inner = njit(nogil=True, cache=True, forceinline=True, error_model="numpy")
