"""Whole batches drawn by other tasks: a sampler task answers, a worker asks one of several."""

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType, edge_key
from penstock.sampling.block import MiniBatch, TypedBatch
from penstock.sampling.key import BatchKey
from penstock.sampling.links.splitting import Absent
from penstock.sampling.lists import check_typed_seeds
from penstock.sampling.neighbours import NeighbourSampler
from penstock.sampling.parts.labor import PartedLabor
from penstock.sampling.parts.lacking import LackingSampler
from penstock.sampling.parts.requests import AbsentForm, BatchRequest, read_body
from penstock.sampling.parts.travelling import batch_messages, batch_received
from penstock.sampling.typed import Relation, TypedNeighbourSampler
from penstock.wire.channel import Channel
from penstock.wire.message import Message
from penstock.wire.post import Post

Sampler = NeighbourSampler | TypedNeighbourSampler | LackingSampler | PartedLabor


def serve_batches(post: Post, samplers: Mapping[str, Sampler]) -> None:
    """Answer "batch" with some samplers, by name, which ask owners elsewhere.

    Not on a post that also serves lists: its threads, waiting for each other's draws, would wait in a circle.
    """

    def batch(message: Message, sender: str) -> list[Message]:
        asked = read_body(message, BatchRequest)
        if asked.sampler not in samplers:
            raise PenstockError(f"{post.name} has no sampler {asked.sampler!r}{nearest(asked.sampler, samplers)}")
        return batch_messages(_sampled(samplers[asked.sampler], asked, message.arrays))

    post.serve("batch", batch)


class RemoteSampler:
    """Samples as the samplers of other tasks do, and gives what they give. Any thread may ask.

    The batch's number decides which task draws it, so that asked again it is drawn by the same one.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        sampler: str,
        counts: Mapping[str, int],
        names: Mapping[str, Array] | None = None,
    ) -> None:
        """`sampler` is the name under which the tasks serve it; `counts` and `names` are as for `Readable`."""
        if not channels:
            raise PenstockError("There are no sampler tasks to ask: give at least one channel.")
        self._channels, self._sampler, self._counts, self._names = list(channels), sampler, dict(counts), names

    def sample(
        self,
        seeds: Array | Mapping[str, Array],
        key: BatchKey,
        *,
        exclude: Array | Mapping[Relation, Array] | None = None,
        absent: Mapping[EdgeType, Absent] | None = None,
        times: Array | None = None,
        places: Array | None = None,
    ) -> MiniBatch | TypedBatch:
        """The batch of some different seeds: an array for a graph of one type, or arrays by type.

        The rest is as for the samplers that the tasks have; whoever gives `times` gives `places` too.
        """
        typed, given = isinstance(seeds, Mapping), self._by_type(seeds)
        excluded = None if exclude is None else _by_relation(exclude)
        body = BatchRequest(
            sampler=self._sampler,
            key=[int(number) for number in key],
            seeds={name: len(these) for name, these in given.items()},
            excluded=None if excluded is None else {name: pairs.shape[1] for name, pairs in excluded.items()},
            absent={edge_key(kind): AbsentForm.of(rule) for kind, rule in absent.items()} if absent else None,
            timed=times is not None,
        )
        arrays = [np.concatenate([*given.values(), np.empty(0, np.int32)])]
        if excluded is not None:
            arrays.append(np.concatenate([*excluded.values(), np.empty((2, 0), np.int64)], 1))
        if times is not None and places is not None:
            arrays += [np.ascontiguousarray(times), np.ascontiguousarray(places, np.int64)]
        channel = self._channels[key.batch % len(self._channels)]
        pending = channel.start(Message("batch", body.model_dump(), tuple(arrays)))
        batch = batch_received(pending.parts(), self._counts, key, channel.peer)
        if isinstance(batch, TypedBatch) != typed:
            raise PenstockError(f"The sampler {self._sampler!r} of {channel.peer} is for another graph than this one.")
        if isinstance(batch, MiniBatch) and self._names is not None:
            batch.names = self._names[batch.node_type][batch.vertices]
        return batch

    def _by_type(self, seeds: Array | Mapping[str, Array]) -> dict[str, Array]:
        if not isinstance(seeds, Mapping):
            if len(self._counts) != 1:
                raise PenstockError(f"Name the seeds' type: the graph has {', '.join(self._counts)}.")
            seeds = dict.fromkeys(self._counts, seeds)
        return check_typed_seeds(seeds, self._counts)


def _by_relation(exclude: Array | Mapping[Relation, Array]) -> dict[str, Array]:
    """Excluded edges as int64 by the relation's key; of a graph of one relation, under no name."""
    if not isinstance(exclude, Mapping):
        exclude = {"": exclude}
    found = {}
    for relation, pairs in exclude.items():
        pairs = np.asarray(pairs)
        if pairs.ndim != 2 or len(pairs) != 2 or (pairs.dtype.kind not in "iu" and pairs.size):
            raise PenstockError(
                f"Excluded edges have shape {pairs.shape} and type {pairs.dtype}: give whole numbers [2, m],"
                " sources above destinations."
            )
        found[relation if isinstance(relation, str) else edge_key(relation)] = pairs.astype(np.int64)
    return found


def _sampled(sampler: Sampler, asked: BatchRequest, arrays: Sequence[Array]) -> MiniBatch | TypedBatch:
    """The batch that a request asks for; seeds and excluded edges are checked by the sampler."""
    key = BatchKey(*asked.key)
    seen: dict[str, Array] = {}
    if asked.timed:
        *arrays, times, places = arrays
        seen = _checked_seen(asked, times, places)
    seeds, excluded = _apart(asked, arrays)
    if isinstance(sampler, LackingSampler):
        sampler = sampler.lacking({name: form.read() for name, form in (asked.absent or {}).items()})
    elif asked.absent:
        raise PenstockError(f"The sampler {asked.sampler!r} is of the whole graph, without edges held out of it.")
    if isinstance(sampler, TypedNeighbourSampler):
        return sampler.sample(seeds, key, exclude=excluded)
    if seen and not isinstance(sampler, NeighbourSampler):
        raise PenstockError(f"The sampler {asked.sampler!r} does not obey time.")
    if list(seeds) != [sampler.node_type] or (excluded is not None and list(excluded) != [""]):
        raise PenstockError(f"The sampler {asked.sampler!r} is of a graph of one type, {sampler.node_type!r}.")
    given = None if excluded is None else excluded[""]
    if isinstance(sampler, NeighbourSampler):
        return sampler.sample(seeds[sampler.node_type], key, exclude=given, **seen)
    return sampler.sample(seeds[sampler.node_type], key, exclude=given)


def _checked_seen(asked: BatchRequest, times: Array, places: Array) -> dict[str, Array]:
    """Times and places of all seeds; times are checked by the sampler."""
    count = sum(asked.seeds.values())
    if places.shape != (count,) or times.shape != (count,) or places.dtype != np.int64:
        raise PenstockError("A request for a batch has other times than seeds: is the worker of the same release?")
    return {"times": times, "places": places}


def _apart(asked: BatchRequest, arrays: Sequence[Array]) -> tuple[dict[str, Array], dict[Relation, Array] | None]:
    """Seeds by type and excluded edges by relation."""
    wanted = 1 if asked.excluded is None else 2
    if len(arrays) != wanted or arrays[0].shape != (sum(asked.seeds.values()),):
        raise PenstockError("A request for a batch has other seeds than it says: is the worker of the same release?")
    seeds = dict(zip(asked.seeds, _cut(arrays[0], list(asked.seeds.values())), strict=True))
    if asked.excluded is None:
        return seeds, None
    if arrays[1].shape != (2, sum(asked.excluded.values())):
        raise PenstockError(
            "A request for a batch excludes other edges than it says: is the worker of the same release?"
        )
    return seeds, dict(zip(asked.excluded, _cut(arrays[1], list(asked.excluded.values())), strict=True))


def _cut(array: Array, lengths: list[int]) -> list[Array]:
    """Along the last axis, into pieces of some lengths."""
    return np.split(array, np.cumsum(lengths, dtype=np.int64), -1)[:-1]
