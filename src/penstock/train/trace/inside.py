"""Memory that operations of a GPU take for themselves, beside what they return: no trace of tensors sees it.

Matrix libraries keep a workspace for each stream that they work on. Sorts take room for a second copy of their keys and
places; torch does so for every stable sort, and where gradients of picked rows are added up. Sums of columns take a
buffer for the thread blocks that share a column.
"""

import math
from typing import Any

import torch

from penstock.train.trace.libraries import library_memory

_aten: Any = torch.ops.aten
_PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.mv, _aten.dot}
_PLACE_BYTES = 8
"""Of a place in an order."""
_SUM_THREADS, _LEAST_EACH, _MOST_EACH = 512, 16, 256
"""Threads of a block that sums, for one column each; and numbers that each adds where blocks share a column."""
_PICKED_ARRAYS = 6
"""Arrays of places, each as long as the places picked, that torch sorts before it adds up rows: the places, their
order, both sorted, and the sort's second copy."""


def library_workspaces(operation: Any) -> tuple[tuple[str, int], ...]:
    """Libraries that an operation calls, and the bytes that each keeps for the stream."""
    packet = operation.overloadpacket
    if packet not in _PRODUCTS:
        return ()
    memory = library_memory()
    # A product with a bias is cuBLASLt's, which some releases of torch give a workspace of its own.
    products = (("cublas", memory.product_workspace),)
    return (*products, ("cublaslt", memory.bias_workspace)) if packet is _aten.addmm else products


def column_sums_bytes(rows: int, columns: int, item: int) -> int:
    """Bytes of the buffer that torch takes to add up the rows of a matrix, by its rule for kernels of reductions.

    A thread handles up to four neighbouring columns. Where every thread would add 256 numbers or more, several thread
    blocks share the rows: as many as fill the GPU, but with 16 numbers for each thread at least. The buffer has a row
    of all columns for each column that a block handles, and that for each block.
    """
    vector = next(count for count in (4, 2, 1) if columns % count == 0)
    threads, groups = _SUM_THREADS // vector, columns // vector
    width = min(_power_below(groups), 32)
    height = min(_power_below(rows), threads // width)
    width = min(_power_below(groups), threads // height)
    each, grid = -(-rows // height), -(-groups // width)
    memory = library_memory()
    target = memory.multiprocessors * (memory.multiprocessor_threads // (width * height))
    if each < _MOST_EACH or grid > target:
        return 0
    blocks = max(min(-(-target // grid), -(-each // _LEAST_EACH)), -(-each // _MOST_EACH))
    return 0 if blocks == 1 else item * columns * blocks * width * vector


def _summed(values: torch.Tensor, dims: Any) -> int:
    """Of a sum over the first dimensions of a contiguous tensor."""
    summed = sorted(dim % max(1, values.dim()) for dim in dims or ())
    leading = summed == list(range(len(summed))) and 0 < len(summed) < values.dim()
    if not leading or not values.numel() or not values.is_contiguous():
        return 0
    rows = math.prod(values.shape[: len(summed)])
    return column_sums_bytes(rows, values.numel() // max(1, rows), max(4, values.element_size()))


def _power_below(size: int) -> int:
    """The largest power of two that is not above."""
    return 1 << (max(1, size).bit_length() - 1)


def memory_inside(operation: Any, args: Any, kwargs: Any) -> list[int]:
    """Bytes of what an operation allocates and frees before it ends."""
    packet = operation.overloadpacket
    if operation is _aten.sum.dim_IntList:
        return [_summed(*args[:2])]
    if packet is _aten.sort:
        keys = args[0]
        return [_PLACE_BYTES * keys.numel(), (keys.element_size() + _PLACE_BYTES) * keys.numel()]
    if packet in (_aten.index_put_, _aten.index_put, _aten._index_put_impl_):
        given = dict(zip(("self", "indices", "values", "accumulate"), args, strict=False)) | kwargs
        picked = [each for each in given["indices"] if each is not None]
        if given.get("accumulate", False) and picked and picked[0].dtype is not torch.bool:
            return [_PICKED_ARRAYS * _PLACE_BYTES * max(each.numel() for each in picked)]
    if packet is _aten.index:
        # Places of what a mask keeps are found first.
        masks = [each for each in args[1] if each is not None and each.dtype is torch.bool]
        return [_PLACE_BYTES * each.numel() * each.dim() for each in masks]
    if packet is _aten.embedding_dense_backward:
        return [_PICKED_ARRAYS * _PLACE_BYTES * args[1].numel()]
    return []
