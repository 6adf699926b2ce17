"""Memory that operations of a GPU take for themselves, beside what they return: no trace of tensors sees it.

Matrix libraries keep a workspace for each stream that they work on. Sorts take room for a second copy of their keys and
places; torch does so for every stable sort, and where gradients of picked rows are added up.
"""

from typing import Any

import torch

from penstock.train.trace.libraries import library_memory

_aten: Any = torch.ops.aten
_PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.mv, _aten.dot}
_PLACE_BYTES = 8
"""Of a place in an order."""
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


def memory_inside(operation: Any, args: Any, kwargs: Any) -> list[int]:
    """Bytes of what an operation allocates and frees before it ends."""
    packet = operation.overloadpacket
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
