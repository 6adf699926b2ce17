"""Dropout, alone or after a ReLU, in one pass. What is dropped is a hash of a key, a row's name and the column.

torch's own dropout draws one number at a time from a generator and takes longer than the aggregation. Under
`dropping(key, names)` the calls' keys are a stream of that key, which identifies the batch, and a row's name is its
vertex's number: the vertex loses the same values whichever part of the batch it is computed in. Without names a row's
name is its position, and outside that context keys come from torch's generator, so that a seed repeats a run. The
result depends neither on threads nor on the device.

Calls are distinguished by their number in the pass. A part of a batch may lack a node type or a relation that the whole
has: dropout that would have happened there is counted with `skip_drop`, so that later calls keep their numbers.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.graph.arrays import Array
from penstock.graph.hashing import mix
from penstock.graph.schema import EdgeType
from penstock.nn.aggregation import as_rows, check_matrix, check_shape, differentiable
from penstock.nn.device import drop as on_device
from penstock.nn.device.drop import DropKey, Dropping, Rectified, rectified
from penstock.nn.kernels import drop_rows, pass_where_positive
from penstock.nn.threads import plain_chunks, run_chunks
from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock
from penstock.traced import array_of, is_gpu, is_traced

_STEPS = 1 << 16
"""The precision of shares."""
_STEP = 0x9E3779B97F4A7C15

Names = Tensor | dict[str, Tensor]
"""Original numbers of the rows' vertices; of a batch of several node types, by type."""


@dataclass
class DropStream:
    """The keys of one forward pass: its n-th call draws with mix(key + (n + 1) * step).

    `key` is a number, or on a device an int64 tensor with its bits, read when a kernel runs: a captured graph draws
    anew for every batch. So are `names`, integers: row i of any layer is the vertex names[i], or of a node type t,
    where there are several, the vertex names[t][i].
    """

    key: int | Tensor
    names: Names | None = None
    calls: int = 0

    def next(self, names: Tensor | None) -> DropKey:
        """The key of the next call, for rows of these names."""
        call, self.calls = self.calls, self.calls + 1
        if isinstance(self.key, Tensor):
            return DropKey(tensor=self.key, call=call, names=names)
        return DropKey(int(mix(np.uint64((self.key + (call + 1) * _STEP) % (1 << 64)))), names=names)

    def names_of(self, x: Tensor, node_type: str | None = None) -> Tensor | None:
        """The names of x's rows, on x's device; None where x has more rows than there are vertices,
        and so other rows.
        """
        return self._names_at(node_type, len(x), x.device)

    def edge_names(self, block: Block, kind: EdgeType | None = None) -> Tensor | None:
        """The names of a block's edges, made of both ends': destination * 2^32 + source, modulo 2^64."""
        source_type, _, target_type = kind or (None, None, None)
        sources = self._names_at(source_type, block.num_src, block.device)
        targets = self._names_at(target_type, block.num_dst, block.device)
        return None if sources is None or targets is None else _name_edges(block, targets, sources)

    def _names_at(self, node_type: str | None, rows: int, device: torch.device) -> Tensor | None:
        """The names of a type's first rows, on a device; None where there are none, or fewer than `rows`."""
        if isinstance(self.names, dict):
            if node_type is None and len(self.names) == 1:
                # A model of one type need not know the type's name.
                (node_type,) = self.names
            names = None if node_type is None else self.names.get(node_type)
        else:
            names = self.names
        if names is None or rows > len(names):
            return None
        if names.device != device:
            names = names.to(device)
            if isinstance(self.names, dict) and node_type is not None:
                self.names[node_type] = names
            else:
                self.names = names
        return names


@singledispatch
def _name_edges(block: Block, targets: Tensor, sources: Tensor) -> Tensor:
    if is_traced():
        return torch.empty(block.num_edges, dtype=torch.int64)
    ends = targets.numpy().astype(np.int64, copy=False), sources.numpy().astype(np.int64, copy=False)
    return torch.from_numpy((ends[0][block.destinations()] << 32) + ends[1][block.indices])


_name_edges.register(DeviceBlock, on_device.name_edges)


@contextmanager
def dropping(
    key: int | np.uint64 | Tensor, names: Array | Tensor | Mapping[str, Array | Tensor] | None = None
) -> Iterator[DropStream]:
    """Within the context, what is dropped depends only on the key, the number of the call, the row's name and the
    column.

    `names[i]` is the original number of the vertex in row i of every layer (integers; a layer's rows are the first of
    the batch's), or None to use positions; for a batch of several node types they are arrays by type. A vertex that a
    batch holds more than once, as one sampled by time may, loses the same values in each of its rows.
    """
    stream = DropStream(key if isinstance(key, Tensor) else int(key), _as_names(names))
    token = _stream.set(stream)
    try:
        yield stream
    finally:
        _stream.reset(token)


def drop(x: Tensor, share: float, node_type: str | None = None) -> Tensor:
    """x with a share of its values set to zero, the others scaled up to keep the expectation.

    `node_type` is the type of the rows' vertices, in a batch of several types.
    """
    if share == 0:
        return x
    return differentiable(_Drop, x, share, _key_for(x, node_type))


def drop_edges(block: Block, x: Tensor, share: float, kind: EdgeType | None = None) -> Tensor:
    """`drop` for a row per edge of a block, as attention has. Edges between the same two vertices are dropped alike.

    `kind` is the block's relation, in a batch of several.
    """
    if share == 0:
        return x
    return differentiable(_Drop, x, share, _edge_key_for(x, block, kind))


def relu_drop(x: Tensor, share: float, node_type: str | None = None) -> Tensor:
    """drop(relu(x), share), in place of x, which must not be used afterwards."""
    if share == 0:
        return torch.relu_(x)
    return differentiable(_ReluDrop, x.contiguous(), share, _key_for(x, node_type))


def skip_drop(share: float) -> None:
    """Count a call of `drop` with this share that has no rows here, as other parts of the batch may have some."""
    stream = _stream.get()
    if share > 0 and stream is not None:
        stream.calls += 1


def rectify_later(x: Tensor, share: float, normalise: Callable[[Tensor, Dropping], Tensor] | None = None) -> Rectified:
    """drop(relu(x), share), whose backward pass is left to the reader of the rows; for rows on a device.

    `normalise` does it in the pass in which it normalises the rows.
    """
    drops = next_dropping(x, share)
    if normalise is not None:
        return Rectified(normalise(x, drops), drops.scale)
    return rectified(x, drops)


def next_dropping(x: Tensor, share: float) -> Dropping:
    """What the next call of dropout does to rows of vertices, as many as x has."""
    return Dropping(_key_for(x), _limit(share), _scale(share)) if share else Dropping()


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float, key: DropKey) -> Tensor:
        ctx.share, ctx.key = share, key
        return _dropped(x, share, key)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _dropped(grad, ctx.share, ctx.key), None, None


class _ReluDrop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float, key: DropKey) -> Tensor:
        ctx.mark_dirty(x)
        ctx.share, ctx.on_device = share, _goes_to_device(x, key)
        _drop_into(x.detach(), x.detach(), share, key, True)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """The gradient passes where the output is positive."""
        (y,) = ctx.saved_tensors
        if ctx.on_device:
            return on_device.pass_where_positive(y, grad.contiguous(), _scale(ctx.share)), None, None
        result = torch.empty_like(y)
        kept, rows, out = as_rows(y), as_rows(grad), array_of(result)
        scale = rows.dtype.type(_scale(ctx.share))

        def work(_: int, first: int, last: int) -> None:
            pass_where_positive(kept, rows, scale, out, first, last)

        run_chunks(work, plain_chunks(*rows.shape))
        return result, None, None


def _dropped(x: Tensor, share: float, key: DropKey) -> Tensor:
    rows = x.detach().contiguous()
    result = torch.empty_like(rows)
    _drop_into(rows, result, share, key, False)
    return result


def _drop_into(x: Tensor, result: Tensor, share: float, key: DropKey, rectify: bool) -> None:
    limit = _limit(share)
    if _goes_to_device(x, key):
        on_device.drop_rows(x, Dropping(key, limit, _scale(share)), rectify, result)
        return
    rows, out = array_of(x), array_of(result)
    scale, number = rows.dtype.type(_scale(share)), np.uint64(key.number)
    names = _PLACES if key.names is None else array_of(key.names)

    def work(_: int, first: int, last: int) -> None:
        drop_rows(rows, names, number, limit, scale, rectify, out, first, last)

    run_chunks(work, plain_chunks(*rows.shape))


def _goes_to_device(x: Tensor, key: DropKey) -> bool:
    """Whether Triton draws: if the rows are on a GPU, or the key is on a device."""
    return is_gpu(x.device) or key.tensor is not None


def _limit(share: float) -> int:
    return max(1, round((1 - share) * _STEPS))


def _scale(share: float) -> float:
    return _STEPS / _limit(share)


def _key_for(x: Tensor, node_type: str | None = None) -> DropKey:
    """The next key, for rows of vertices."""
    stream = _stream.get()
    return _checked(x, _unnamed_key() if stream is None else stream.next(stream.names_of(x, node_type)))


def _edge_key_for(x: Tensor, block: Block, kind: EdgeType | None) -> DropKey:
    """The next key, for rows of a block's edges."""
    stream = _stream.get()
    return _checked(x, _unnamed_key() if stream is None else stream.next(stream.edge_names(block, kind)))


def _unnamed_key() -> DropKey:
    """A key from torch's generator."""
    return DropKey(int(torch.randint(2**63 - 1, ())))


def _checked(x: Tensor, key: DropKey) -> DropKey:
    """The key, validated for these rows."""
    if _goes_to_device(x, key):
        check_shape(x)
    else:
        check_matrix(x)
    return key


def _as_names(names: Array | Tensor | Mapping[str, Array | Tensor] | None) -> Names | None:
    if isinstance(names, Mapping):
        return {node_type: _as_tensor(each) for node_type, each in names.items()}
    return None if names is None else _as_tensor(names)


def _as_tensor(names: Array | Tensor) -> Tensor:
    """Names as a tensor; on the host in one dtype, so that one kernel is compiled."""
    return names if isinstance(names, Tensor) else torch.from_numpy(np.array(names, np.int64))


_PLACES = np.empty(0, np.int64)
_stream: ContextVar[DropStream | None] = ContextVar("_stream", default=None)
