"""Whole batches drawn by other tasks: a worker sends requests to one of several sampler tasks."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, TypeVar

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType, edge_key
from penstock.sampling.block import BatchKey, MiniBatch
from penstock.sampling.links.edge_split import HeldOutRule
from penstock.sampling.lists import check_typed_seeds
from penstock.sampling.neighbours import NeighbourSampler, Relation
from penstock.sampling.parts.requests import (
    BatchRequest,
    HeldOutRuleForm,
    ItemsRequest,
    batch_messages,
    batch_received,
    malformed,
    read_body,
)
from penstock.sampling.typed import TypedNeighbourSampler
from penstock.wire.channel import Channel, RemoteError
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message

# A sampler of a partitioned graph that is given with every batch which edges are held out of which relation. A sampler
# task does not know what a worker's task holds out before it is asked.

Inner = NeighbourSampler | TypedNeighbourSampler


class HoldoutSampler:
    """Makes a sampler for given held-out edges, and keeps the newest. Any thread may call it."""

    def __init__(self, make: Callable[[Mapping[EdgeType, HeldOutRule]], Inner], edge_types: list[EdgeType]) -> None:
        self._make, self._kinds = make, {edge_key(kind): kind for kind in edge_types}
        self._lock = threading.Lock()
        self._newest: tuple[dict[str, HeldOutRule], Inner] = {}, make({})

    def lacking(self, absent: Mapping[str, HeldOutRule]) -> Inner:
        """The sampler without the held-out edges, given by relation key."""
        for name in absent:
            if name not in self._kinds:
                raise PenstockError(
                    f"There is no relation {name!r} to hold edges out of: use one of {', '.join(self._kinds)}.",
                    code="unknown-name",
                )
        with self._lock:
            if self._newest[0] != absent:
                self._newest = dict(absent), self._make({self._kinds[name]: rule for name, rule in absent.items()})
            return self._newest[1]

    def sample(
        self, seeds: Any, key: BatchKey, *, absent: Mapping[EdgeType, HeldOutRule] | None = None, **more: Any
    ) -> MiniBatch:
        """A batch by the sampler without the held-out edges."""
        return self.lacking({edge_key(kind): rule for kind, rule in (absent or {}).items()}).sample(seeds, key, **more)


Said = TypeVar("Said")
_AGAIN = 0.05
"""Seconds before a task whose sampler is not ready yet is asked again."""


class SamplerNotReady(PenstockError):  # noqa: N818
    """A sampler task has not finished preparing its sampler from the whole graph."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="not-available")


def serve_batches(endpoint: Endpoint, samplers: Mapping[str, Any]) -> None:
    """Answer "batch" and "items" with some samplers, by name, which ask owners elsewhere; None: not ready yet.

    Do not use an endpoint that also serves lists: its threads would wait for each other's draws in a circle.
    """

    def named(name: str) -> Any:
        if name not in samplers:
            raise PenstockError(
                f"{endpoint.name} has no sampler {name!r}{nearest(name, samplers)}", code="unknown-name"
            )
        sampler = samplers[name]
        if sampler is None:
            raise SamplerNotReady(f"{endpoint.name} is still preparing its sampler {name!r}: ask again.")
        return sampler

    def batch(message: Message, sender: str) -> list[Message]:
        asked = read_body(message, BatchRequest)
        return batch_messages(_sampled(named(asked.sampler), asked, message.arrays))

    def items(message: Message, sender: str) -> Message:
        asked = read_body(message, ItemsRequest)
        sampler = named(asked.sampler)
        numbers: Array | None = getattr(sampler, "items", None)
        if numbers is None:
            raise PenstockError(
                f"The sampler {asked.sampler!r} takes its seeds from the caller, so it has no items.",
                code="unsupported-combination",
            )
        return Message("items", {}, (numbers.astype(np.int64),))

    endpoint.serve("batch", batch)
    endpoint.serve("items", items)


class RemoteSampler:
    """Samples through other tasks, for any thread; a batch's number decides which task draws it."""

    def __init__(
        self,
        channels: Sequence[Channel],
        sampler: str,
        counts: Mapping[str, int],
        names: Mapping[str, Array] | None = None,
    ) -> None:
        """`sampler` is the name under which the tasks serve it; `counts` and `names` are as for `Readable`."""
        if not channels:
            raise PenstockError("There are no sampler tasks to ask: give at least one channel.", code="option-missing")
        self._channels, self._sampler, self._counts, self._names = list(channels), sampler, dict(counts), names

    def sample(
        self,
        seeds: Array | Mapping[str, Array],
        key: BatchKey,
        *,
        exclude: Array | Mapping[Relation, Array] | None = None,
        absent: Mapping[EdgeType, HeldOutRule] | None = None,
        times: Array | Mapping[str, Array] | None = None,
        places: Array | Mapping[str, Array] | None = None,
    ) -> MiniBatch:
        """The batch of some different seeds, an array or arrays by type; `places` must come with `times`."""
        given = self._by_type(seeds)
        seen = _in_order(times, given), _in_order(places, given)
        return self._batch(given, isinstance(seeds, Mapping), key, exclude, absent, *seen)

    def items(self) -> Array:
        """The items of an epoch, for a sampler that finds its own seeds: ascending integers."""
        channel = self._channels[0]
        message = Message("items", ItemsRequest(sampler=self._sampler).model_dump())
        (found,) = _when_ready(lambda: channel.start(message).result()).arrays
        if found.ndim != 1 or found.dtype != np.int64 or (np.diff(found) <= 0).any():
            raise malformed(channel.peer, "sent an answer without valid items")
        return found

    def sample_items(self, items: Array, key: BatchKey) -> MiniBatch:
        """The batch of some items, of a graph of one type."""
        (only,) = self._counts
        return self._batch({only: np.asarray(items, np.int64)}, False, key)

    def _batch(
        self,
        given: Mapping[str, Array],
        typed: bool,
        key: BatchKey,
        exclude: Array | Mapping[Relation, Array] | None = None,
        absent: Mapping[EdgeType, HeldOutRule] | None = None,
        times: Array | None = None,
        places: Array | None = None,
    ) -> MiniBatch:
        excluded = None if exclude is None else _by_relation(exclude)
        body = BatchRequest(
            sampler=self._sampler,
            key=[int(number) for number in key],
            seeds={name: len(these) for name, these in given.items()},
            excluded=None if excluded is None else {name: pairs.shape[1] for name, pairs in excluded.items()},
            absent={edge_key(kind): HeldOutRuleForm.of(rule) for kind, rule in absent.items()} if absent else None,
            timed=times is not None,
        )
        arrays = [np.concatenate([*given.values(), np.empty(0, np.int32)])]
        if excluded is not None:
            arrays.append(np.concatenate([*excluded.values(), np.empty((2, 0), np.int64)], 1))
        if times is not None and places is not None:
            arrays += [np.ascontiguousarray(times), np.ascontiguousarray(places, np.int64)]
        channel = self._channels[key.batch % len(self._channels)]
        message = Message("batch", body.model_dump(), tuple(arrays))
        batch = _when_ready(lambda: batch_received(channel.start(message).parts(), self._counts, key, channel.peer))
        if batch.blocks[0].has_lists == typed:
            raise PenstockError(
                f"The sampler {self._sampler!r} of {channel.peer} is for another graph than this one.",
                code="mismatched-inputs",
            )
        if self._names is not None:
            batch.names = {name: self._names[name][vertices] for name, vertices in batch.vertices.items()}
        return batch

    def _by_type(self, seeds: Array | Mapping[str, Array]) -> dict[str, Array]:
        if not isinstance(seeds, Mapping):
            if len(self._counts) != 1:
                raise PenstockError(
                    f"Name the seeds' node type: the graph has {', '.join(self._counts)}.", code="option-missing"
                )
            seeds = dict.fromkeys(self._counts, seeds)
        return check_typed_seeds(seeds, self._counts)


def _in_order(values: Array | Mapping[str, Array] | None, seeds: Mapping[str, Array]) -> Array | None:
    """Values of all seeds, concatenated over types."""
    if not isinstance(values, Mapping):
        return values
    return np.concatenate([values[name] for name in seeds] or [np.empty(0, np.int64)])


def _when_ready(ask: Callable[[], Said]) -> Said:
    """The result of `ask`, repeated until the task's sampler is ready; a lost task is noticed at every call."""
    while True:
        try:
            return ask()
        except RemoteError as error:
            if error.type != SamplerNotReady.__name__:
                raise
        time.sleep(_AGAIN)


def _by_relation(exclude: Array | Mapping[Relation, Array]) -> dict[str, Array]:
    """Excluded edges as int64 by relation key; with an empty key for a graph of one relation."""
    if not isinstance(exclude, Mapping):
        exclude = {"": exclude}
    found = {}
    for relation, pairs in exclude.items():
        pairs = np.asarray(pairs)
        if pairs.ndim != 2 or len(pairs) != 2 or (pairs.dtype.kind not in "iu" and pairs.size):
            raise PenstockError(
                f"Excluded edges have shape {pairs.shape} and type {pairs.dtype}: give integers of shape [2, m],"
                " sources in the first row and destinations in the second.",
                code="shape-mismatch",
            )
        found[relation if isinstance(relation, str) else edge_key(relation)] = pairs.astype(np.int64)
    return found


def _sampled(sampler: Any, asked: BatchRequest, arrays: Sequence[Array]) -> MiniBatch:
    """The batch that a request asks for; the sampler validates seeds and excluded edges."""
    key = BatchKey(*asked.key)
    more: dict[str, Any] = {}
    if asked.timed:
        *arrays, times, places = arrays
        more = _checked_seen(asked, times, places)
    seeds, excluded = _apart(asked, arrays)
    if excluded is not None:
        more["exclude"] = excluded
    if isinstance(sampler, HoldoutSampler):
        sampler = sampler.lacking({name: form.read() for name, form in (asked.absent or {}).items()})
    elif asked.absent:
        raise PenstockError(
            f"The sampler {asked.sampler!r} samples the whole graph: it cannot hold edges out.",
            code="unsupported-combination",
        )
    sample: Callable[..., MiniBatch] = sampler.sample
    taken = signature(sample).parameters
    any_name = any(each.kind is Parameter.VAR_KEYWORD for each in taken.values())
    refused = [name for name in more if name not in taken and not any_name]
    if refused:
        raise PenstockError(
            f"The sampler {asked.sampler!r} does not support {' and '.join(refused)}.", code="unsupported-combination"
        )
    node_type = getattr(sampler, "node_type", None)
    if node_type is None:
        sizes = list(asked.seeds.values())
        for name in {"times", "places"} & set(more):
            more[name] = dict(zip(asked.seeds, _cut(more[name], sizes), strict=True))
        return sample(seeds, key, **more)
    if list(seeds) != [node_type] or (excluded is not None and list(excluded) != [""]):
        raise PenstockError(
            f"The sampler {asked.sampler!r} samples a graph with one node type: it does not know {node_type!r}.",
            code="unsupported-combination",
        )
    if excluded is not None:
        more["exclude"] = excluded[""]
    return sample(seeds[node_type], key, **more)


def _checked_seen(asked: BatchRequest, times: Array, places: Array) -> dict[str, Array]:
    """Times and positions of all seeds; the sampler validates times."""
    count = sum(asked.seeds.values())
    if places.shape != (count,) or times.shape != (count,) or places.dtype != np.int64:
        raise malformed("The worker", "sent a request for a batch without one time for each seed")
    return {"times": times, "places": places}


def _apart(asked: BatchRequest, arrays: Sequence[Array]) -> tuple[dict[str, Array], dict[Relation, Array] | None]:
    """Seeds by type and excluded edges by relation."""
    wanted = 1 if asked.excluded is None else 2
    if len(arrays) != wanted or arrays[0].shape != (sum(asked.seeds.values()),):
        raise malformed("The worker", "sent a request for a batch without the seeds that its header lists")
    seeds = dict(zip(asked.seeds, _cut(arrays[0], list(asked.seeds.values())), strict=True))
    if asked.excluded is None:
        return seeds, None
    if arrays[1].shape != (2, sum(asked.excluded.values())):
        raise malformed("The worker", "sent a request for a batch without the excluded edges that its header lists")
    return seeds, dict(zip(asked.excluded, _cut(arrays[1], list(asked.excluded.values())), strict=True))


def _cut(array: Array, lengths: list[int]) -> list[Array]:
    """Cut an array along its last axis into pieces of some lengths."""
    return np.split(array, np.cumsum(lengths, dtype=np.int64), -1)[:-1]
