"""Asking memory ahead of need, inside kernels: rows drawn at random are where no processor expects them."""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LINE_BYTES = 64
"""What memory hands over at a time."""


def _prefetch(typing: Any, table: Any, row: Any, column: Any) -> Any:
    """Have `table[row, column]` on its way to the cache. A hint: it may be outside the table."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        made, kind = context.make_array(signature.args[0])(context, builder, args[0]), signature.args[0]
        place = cgutils.get_item_pointer(context, builder, kind, made, list(args[1:]), wraparound=False)  # type: ignore[no-untyped-call]
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        takes = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, takes, "llvm.prefetch.p0")  # type: ignore[no-untyped-call]
        # To be read, soon, as data.
        builder.call(function, [builder.bitcast(place, byte), *(ir.Constant(number, each) for each in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(table, row, column), generate


prefetch: Any = intrinsic(_prefetch)
"""Called from kernels with an array of two dimensions and two int64."""
