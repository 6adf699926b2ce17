"""The shapes of results of frequent operations, by rule.

torch can find them by itself, for many operations in Python code that imports its compiler on the first call: that
takes seconds, and more memory than many a job. The rules here are those of the operations that models and losses
consist of; for any other operation torch is asked.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

_aten: Any = torch.ops.aten


_ONE_BY_ONE = (
    "abs",
    "bitwise_not",
    "ceil",
    "clamp",
    "clamp_max",
    "clamp_min",
    "cos",
    "erf",
    "elu",
    "exp",
    "expm1",
    "floor",
    "gelu",
    "leaky_relu",
    "log",
    "log1p",
    "neg",
    "reciprocal",
    "relu",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sqrt",
    "tanh",
    "square",
)
"""Elementwise operations."""


_RESHAPING = ("resize_", "set_", "t_", "transpose_", "squeeze_", "unsqueeze_", "detach_", "swapaxes_", "as_strided_")


@cache
def rule_for(operation: Any) -> Callable[..., Any]:
    """The rule of an operation; the operation itself where there is none."""
    name = operation._schema.name.rpartition("::")[2]
    if name.endswith("_") and not name.endswith("__") and name not in _RESHAPING:
        # In-place operations return their first argument; operations on lists return nothing.
        return _itself if operation._schema.returns else _nothing
    rule: Callable[..., Any] = _RULES.get(operation, operation)
    return rule


def like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A meta tensor of the same shape."""
    return torch.empty(x.shape, dtype=dtype or x.dtype, device="meta")


def _alike(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return like(x)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _itself(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


def _joint(x: Any, y: Any, *_: Any, **__: Any) -> Tensor:
    """The shape of two operands after broadcasting; numbers have no shape."""
    shapes = [tuple(each.shape) if isinstance(each, Tensor) else () for each in (x, y)]
    return torch.empty(np.broadcast_shapes(*shapes), dtype=torch.result_type(x, y), device="meta")


def _quotient(x: Any, y: Any, *_: Any, **__: Any) -> Tensor:
    made = _joint(x, y)
    return made if made.is_floating_point() else made.float()


def _comparison(x: Any, y: Any, *_: Any, **__: Any) -> Tensor:
    return torch.empty(_joint(x, y).shape, dtype=torch.bool, device="meta")


def _mask(x: Tensor) -> Tensor:
    return like(x, torch.bool)


def _chosen(_: Tensor, x: Any, y: Any) -> Tensor:
    return torch.empty(np.broadcast_shapes(_.shape, _joint(x, y).shape), dtype=torch.result_type(x, y), device="meta")


def _picked(x: Tensor, dim: int, index: Tensor) -> Tensor:
    shape = list(x.shape)
    shape[dim] = index.numel()
    return x.new_empty(shape)


def _indexed(x: Tensor, indices: list[Tensor | None]) -> Tensor:
    """Elements picked by index tensors; a mask is assumed to keep everything."""
    given: list[tuple[int, ...] | None] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            given += [(index.numel(),)] * index.dim()
        else:
            given.append(None if index is None else tuple(index.shape))
    given += [None] * (x.dim() - len(given))
    places = [place for place, shape in enumerate(given) if shape is not None]
    joint = list(np.broadcast_shapes(*(shape for shape in given if shape is not None)))
    kept = [size for place, size in enumerate(x.shape) if place not in places]
    together = places == list(range(places[0], places[0] + len(places)))
    first = places[0] if together else 0
    return x.new_empty([*kept[:first], *joint, *kept[first:]])


def _sorted(x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    return like(x), like(x, torch.int64)


def _places(x: Tensor) -> Tensor:
    """Positions of non-zero elements, assumed to be all of them."""
    return x.new_empty((x.numel(), x.dim()), dtype=torch.int64)


def _summed(x: Tensor, dims: list[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    kind = dtype or (x.dtype if x.is_floating_point() else torch.int64)
    return _mean(x, dims, keepdim, dtype=kind)


def _product(_: Any, left: Tensor, right: Tensor, *__: Any, **___: Any) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


def _number(x: Tensor, *_: Any, dtype: Any = None, **__: Any) -> Tensor:
    return x.new_empty((), dtype=dtype or x.dtype)


def _mean(x: Tensor, dims: list[int] | None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    gone = {dim % x.dim() for dim in (dims or range(x.dim()))}
    sizes = [1 if place in gone else size for place, size in enumerate(x.shape) if keepdim or place not in gone]
    return x.new_empty(sizes, dtype=dtype or x.dtype)


def _log_softmax(x: Tensor, _: int, half_to_float: bool) -> Tensor:
    return like(x, torch.float32 if half_to_float else x.dtype)


def _log_softmax_backward(grad: Tensor, _: Tensor, __: int, dtype: torch.dtype) -> Tensor:
    return like(grad, dtype)


def _nll_loss(x: Tensor, target: Tensor, _: Any, reduction: int, __: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(target.shape if reduction == 0 else ()), x.new_empty(())


def _second_alike(_: Tensor, x: Tensor, *__: Any, **___: Any) -> Tensor:
    return like(x)


def _joined(parts: list[Tensor], dim: int = 0) -> Tensor:
    parts = [part for part in parts if part.dim() > 1 or part.numel()] or parts
    shape = list(parts[0].shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    kind = parts[0].dtype
    for part in parts[1:]:
        kind = torch.promote_types(kind, part.dtype)
    return parts[0].new_empty(shape, dtype=kind)


def _stacked(parts: list[Tensor], dim: int = 0) -> Tensor:
    shape = list(parts[0].shape)
    shape.insert(dim if dim >= 0 else dim + len(shape) + 1, len(parts))
    return parts[0].new_empty(shape)


def _layer_norm(x: Tensor, shape: list[int], *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    kept = [*x.shape[: x.dim() - len(shape)], *([1] * len(shape))]
    return like(x), x.new_empty(kept, dtype=torch.float32), x.new_empty(kept, dtype=torch.float32)


def _layer_norm_backward(
    _: Tensor, x: Tensor, __: list[int], ___: Tensor, ____: Tensor, weight: Any, bias: Any, mask: list[bool]
) -> tuple[Tensor | None, ...]:
    return tuple(like(each) if wanted else None for each, wanted in zip((x, weight, bias), mask, strict=True))


def _batch_norm(x: Tensor, _: Any, __: Any, ___: Any, ____: Any, training: bool, *_____: Any) -> tuple[Tensor, ...]:
    kept = x.shape[1] if training else 0
    return like(x), x.new_empty(kept, dtype=torch.float32), x.new_empty(kept, dtype=torch.float32)


def _batch_norm_backward(_: Tensor, x: Tensor, *given: Any) -> tuple[Tensor | None, ...]:
    columns, mask = x.shape[1], given[-1]
    made = like(x), x.new_empty(columns), x.new_empty(columns)
    return tuple(each if wanted else None for each, wanted in zip(made, mask, strict=True))


def _typed_alike(x: Tensor, *_: Any, dtype: Any = None, **__: Any) -> Tensor:
    return like(x, dtype or x.dtype)


_RULES: dict[Any, Callable[..., Any]] = {
    **{getattr(_aten, name).default: _alike for name in _ONE_BY_ONE},
    **{
        getattr(getattr(_aten, name), kind): rule
        for name, rule in (("add", _joint), ("sub", _joint), ("mul", _joint), ("div", _quotient))
        for kind in ("Tensor", "Scalar")
    },
    **{
        getattr(getattr(_aten, name), kind): _comparison
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for kind in ("Tensor", "Scalar")
    },
    **{getattr(_aten, name).default: _joint for name in ("maximum", "minimum")},
    _aten.pow.Tensor_Scalar: _alike,
    _aten.isfinite.default: _mask,
    _aten.where.self: _chosen,
    _aten.index_select.default: _picked,
    _aten.index.Tensor: _indexed,
    _aten.nonzero.default: _places,
    _aten.sort.default: _sorted,
    _aten.sort.stable: _sorted,
    _aten.sum.default: _summed,
    _aten.sum.dim_IntList: _summed,
    _aten.amax.default: lambda x, dims=(), keepdim=False: _mean(x, list(dims), keepdim),
    _aten.mm.default: partial(_product, None),
    _aten.bmm.default: lambda left, right: left.new_empty(*left.shape[:2], right.shape[2]),
    _aten.addmm.default: _product,
    **{getattr(_aten, name).default: _typed_alike for name in ("empty_like", "zeros_like", "ones_like", "full_like")},
    _aten.mean.default: _number,
    _aten.mean.dim: _mean,
    _aten._log_softmax.default: _log_softmax,
    _aten._log_softmax_backward_data.default: _log_softmax_backward,
    _aten.nll_loss_forward.default: _nll_loss,
    _aten.nll_loss_backward.default: _second_alike,
    _aten.threshold_backward.default: _alike,
    _aten.cat.default: _joined,
    _aten.stack.default: _stacked,
    _aten.cumsum.default: _typed_alike,
    _aten.native_batch_norm.default: _batch_norm,
    _aten.native_batch_norm_backward.default: _batch_norm_backward,
    _aten.native_layer_norm.default: _layer_norm,
    _aten.native_layer_norm_backward.default: _layer_norm_backward,
}
