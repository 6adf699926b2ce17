"""The output of samplers: one block for each layer, and the vertices that they refer to.

Estimators. A block says how its edges represent the whole neighbourhood. With `weights`, the sum of weights[e] *
h[source of e] over a destination's edges estimates the sum over its whole list (of edge weight * h, where the graph's
edges have weights). Without `weights` every drawn edge of a row counts the same, so that their mean estimates the
list's mean. `totals` is the number (or weight) of each row's whole list: sum = mean * totals, mean = sum / totals.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.formatting import counted
from penstock.graph.arrays import Array
from penstock.graph.data import GraphData
from penstock.graph.hashing import key_of, keys_of
from penstock.graph.schema import EdgeType
from penstock.kernels import njit

if TYPE_CHECKING:
    from penstock.sampling.explanation import SamplingExplanation


# How models and samplers take what there is for each node type or relation.


def unwrapping(graph: GraphData) -> Callable[[Mapping[Any, Any]], Any]:
    """A function that gives values by node type or relation as models and samplers of a graph take them: the only
    value itself, or None where there is none, if the graph is homogeneous; else all by type.
    """
    return _only_value if graph.is_homogeneous else _all_values


def _only_value(values: Mapping[Any, Any]) -> Any:
    return next(iter(values.values()), None)


def _all_values(values: Mapping[Any, Any]) -> Any:
    return values


# The key of a batch in the hash, so that its draws are the same on any thread, process, part or machine.

BATCH = "{}/{}/{}"
"""The name of a batch's random stream: epoch, batch, purpose."""


class BatchKey(NamedTuple):
    """A batch: the run's seed, the epoch, and the batch's number in it."""

    seed: int
    epoch: int
    batch: int

    def hop(self, number: int, relation: str = "") -> np.uint64:
        """The key of one hop's draws; each relation of a hop has its own."""
        return self.purpose(f"{number}/{relation}" if relation else str(number))

    def purpose(self, what: str) -> np.uint64:
        """The key of a separate random stream within the batch: roots, negatives, dropout."""
        return key_of(self.seed, BATCH, self.epoch, self.batch, what)


class Purpose(NamedTuple):
    """A separate random stream of batches, which so many neighbouring batches of an epoch share."""

    name: str
    batches: int = 1

    def key(self, of: BatchKey) -> np.uint64:
        """The stream's key in a batch."""
        return of._replace(batch=of.batch - of.batch % self.batches).purpose(self.name)

    def keys(self, seed: int, epoch: int, batches: int) -> Array:
        """Its keys in all batches of an epoch, as uint64."""
        keys, numbers = keys_of(seed, BATCH, epoch, batches, self.name), np.arange(batches)
        return keys if self.batches == 1 else np.asarray(keys[numbers - numbers % self.batches])


ONLY: EdgeType = ("", "", "")
"""What a block of one relation calls it: the graph of one relation knows its name, and `Block.named` gives it."""


class _Relations(NamedTuple):
    """What a block of several relations holds in the place of lists."""

    blocks: dict[EdgeType, "Block"]
    src_counts: dict[str, int]
    dst_counts: dict[str, int]


@dataclass(eq=False, repr=False)
class Block:
    """One layer of one batch: for every relation, the source rows that each destination row reads.

    A block of one relation has its lists: `indices[indptr[i]:indptr[i + 1]]` are the source rows that destination row i
    reads, and destination rows are the first `num_dst` source rows. `edges`, where asked for, are the positions of the
    drawn edges in the graph's lists: the numbers by which sources have the rows of edge fields. Of a graph that was cut
    they are the edges' numbers in the cut graph. `totals` covers the destination rows at least, and the source rows
    where a layer normalises by both ends. `edge_attr` [edges, width] and `edge_weight` [edges] are what the edges
    carry, as tensors of float32, where a model reads it; a block just drawn has neither. `ages` [edges], float32, are
    how long before its seed's time each edge was, where a model reads it.

    `relations` has a block of one relation for every relation with edges in the layer. A block of one relation is its
    own only entry, so that it costs no more than its lists; a block of several (`of_relations`) has no lists of its
    own. Of node type t the first `dst_counts[t]` of `src_counts[t]` rows are computed: in a relation's block, `indices`
    are rows of its source type and destination rows are those of its destination type. `num_src`, `num_dst` and
    `num_edges` count all types and relations.
    """

    indptr: Array
    indices: Array
    num_src: int
    weights: Array | None = None
    totals: Array | None = None
    edges: Array | None = None
    edge_attr: Any = None
    edge_weight: Any = None
    ages: Any = None
    derived: dict[str, Any] = field(default_factory=dict, init=False)
    """What was made of the block once, for as long as it lives, by name."""
    mask: Any = field(default=None, init=False)
    """A number for each edge, by which an explanation multiplies its message (`nn.masked`)."""
    _several: _Relations | None = field(default=None, init=False)

    @classmethod
    def of_relations(
        cls, relations: dict[EdgeType, "Block"], src_counts: dict[str, int], dst_counts: dict[str, int]
    ) -> "Block":
        """A block of several relations, each with a block of one relation, and its rows by node type."""
        block = Block.__new__(Block)
        block._several = _Relations(relations, src_counts, dst_counts)
        block.num_src = sum(src_counts.values())
        return block

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Called for what is missing, such as the lists of a block that has none."""
            where = "" if self._several is None else " of its own: its relations have, see `relations`"
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{where}")

    def __repr__(self) -> str:
        if self._several is None:
            return f"Block({self.num_src:,} -> {self.num_dst:,} rows, {self.num_edges:,} edges)"
        rows = ", ".join(f"{name}: {count:,} -> {self.dst_counts[name]:,}" for name, count in self.src_counts.items())
        return f"Block({{{rows}}} rows, {self.num_edges:,} edges of {counted(len(self.relations), 'relations')})"

    @property
    def has_lists(self) -> bool:
        """Whether it is the block of one relation, with that relation's lists."""
        return self._several is None

    @property
    def device(self) -> Any:
        """The `torch.device` that holds the arrays."""
        import torch

        return torch.device("cpu") if self._several is None else self.parts[0].device

    @property
    def on_device(self) -> bool:
        """Whether the arrays are tensors on a device."""
        return self._several is not None and any(part.on_device for part in self.parts)

    @property
    def num_dst(self) -> int:
        """Rows that the layer computes."""
        return len(self.indptr) - 1 if self._several is None else sum(self._several.dst_counts.values())

    @property
    def num_edges(self) -> int:
        """Edges that the layer reads."""
        return len(self.indices) if self._several is None else sum(part.num_edges for part in self.parts)

    @property
    def relations(self) -> dict[EdgeType, "Block"]:
        """By relation, the block of each that has edges in the layer; a block of one relation calls it `ONLY`."""
        return {ONLY: self} if self._several is None else self._several.blocks

    @property
    def parts(self) -> list["Block"]:
        """The blocks of the layer's relations: the only one's is this block."""
        return list(self.relations.values())

    @property
    def src_counts(self) -> dict[str, int]:
        """Rows that the layer reads, by node type."""
        return {ONLY[0]: self.num_src} if self._several is None else self._several.src_counts

    @property
    def dst_counts(self) -> dict[str, int]:
        """Rows that the layer computes, by node type."""
        return {ONLY[2]: self.num_dst} if self._several is None else self._several.dst_counts

    def named(self, edge_types: Iterable[EdgeType]) -> "Block":
        """The block by the names of the graph's relations, which a block of its only relation does not know."""
        if self._several is not None:
            return self
        (kind,) = edge_types
        return Block.of_relations({kind: self}, {kind[0]: self.num_src}, {kind[2]: self.num_dst})

    def changed(self, change: Callable[["Block"], "Block"]) -> "Block":
        """The block with another in the place of each relation's, of the same rows."""
        if self._several is None:
            return change(self)
        made = {kind: change(part) for kind, part in self._several.blocks.items()}
        return Block.of_relations(made, self._several.src_counts, self._several.dst_counts)

    def destinations(self) -> Array:
        """The destination row of every edge."""
        return np.repeat(np.arange(self.num_dst, dtype=self.indices.dtype), np.diff(self.indptr))


@dataclass(eq=False)
class MiniBatch:
    """Seeds and the vertices whose features the batch needs, by node type, and its blocks, outermost first.

    A type's `vertices` start with its seeds; block i reads the first `src_counts` of them and writes the first
    `dst_counts`. In a graph of one node type and one edge type blocks have their lists themselves.
    `seed_weights`, where the sampler draws seeds unevenly, multiply the seeds' losses. `links` is what a task on edges
    adds. `names` are the original numbers of `vertices` where the graph was partitioned; None: they are equal. `whole`,
    where the batch is one worker's share of a larger one, is the number of that one's seeds. `explanation` is the one
    by which remote vertices were drawn, and says which columns of their rows are sent. On a device arrays are tensors,
    and `ready` is the event after which they are complete. `merged` is the result of `merge_edges`, by relation where
    there are several, if it was computed ahead. `trees`, where every seed has a neighbourhood of its own, has for each
    row the position of its seed in the batch.
    """

    seeds: dict[str, Array]
    vertices: dict[str, Array]
    blocks: list[Block]
    features: dict[str, Any] = field(default_factory=dict)
    labels: Any = None
    seed_weights: Array | None = None
    links: Any = None
    key: BatchKey | None = None
    ready: Any = None
    names: dict[str, Array] | None = None
    whole: int | None = None
    merged: Any = None
    explanation: "SamplingExplanation | None" = None
    trees: dict[str, Array] | None = None
    made: Any = None
    """Values of a loader's batch that were computed ahead (`train.loading.batch_fields`)."""
    edge_rows: Any = None
    """Rows read for the edges, before they are put into the blocks (`pipeline.batch_rows`)."""

    @property
    def num_edges(self) -> int:
        """The number of sampled edges of all layers and relations."""
        return sum(block.num_edges for block in self.blocks)

    @property
    def num_seeds(self) -> int:
        """The number of seeds of all node types."""
        return sum(map(len, self.seeds.values()))

    @property
    def node_type(self) -> str:
        """The node type, where the graph has one."""
        if len(self.vertices) != 1:
            raise PenstockError(
                f"Name the node type: this batch has {', '.join(self.vertices)}.", code="option-missing"
            )
        return next(iter(self.vertices))

    @property
    def row_names(self) -> dict[str, Array]:
        """By node type, the original numbers of the vertices in every layer's rows, however the
        graph was partitioned.
        """
        return self.vertices if self.names is None else self.names

    def to_pyg(self) -> Any:
        """The batch of a graph of one type as PyG's `Data`: `x`, `edge_index`, `batch_size`, `n_id`."""
        try:
            from torch_geometric.data import Data
        except ImportError:
            raise PenstockError(
                "PyG is not installed: install it with `pip install 'penstock[pyg]'`.", code="not-installed"
            ) from None
        import torch

        vertices, blocks = self.vertices[self.node_type], self.blocks
        if not all(block.has_lists for block in blocks):
            raise PenstockError(
                "A batch of several relations has no PyG form: use its blocks, or a graph of one type.",
                code="unsupported-combination",
            )
        data = Data(edge_index=torch.from_numpy(merge_edges(blocks)), batch_size=self.num_seeds)
        data.n_id = torch.from_numpy(np.asarray(vertices, np.int64))
        data.num_nodes = len(vertices)
        if self.node_type in self.features:
            data.x = torch.as_tensor(self.features[self.node_type])
        for name in ("edge_attr", "edge_weight"):
            rows = merge_edge_rows(blocks, name)
            if rows is not None:
                setattr(data, name, rows)
        if self.labels is not None:
            data.y = torch.as_tensor(self.labels)
        return data


def merge_edges(blocks: Sequence[Block], known: Sequence[int] | None = None) -> Array:
    """[2, edges] of blocks that are outermost first, as int64; `known` as for `new_rows`.

    A vertex has its list in every layer from its own on; as in PyG's loader, the list of the layer where it first
    appears is kept.
    """
    found = new_rows(blocks, known)
    pair = np.empty((2, sum(block.num_edges - int(block.indptr[first]) for block, first in found)), np.int64)
    written = 0
    for block, first in found:
        written = _write_lists(block.indptr, block.indices, first, pair, written)
    return pair


def merge_values(blocks: Sequence[Block], name: str, known: Sequence[int] | None = None) -> Array | None:
    """An array that blocks have for each edge, such as `weights`, in the order of `merge_edges`;
    None if they lack it.
    """
    found = [(getattr(block, name), int(block.indptr[first])) for block, first in new_rows(blocks, known)]
    return None if any(values is None for values, _ in found) else np.concatenate([v[start:] for v, start in found])


def new_rows(blocks: Sequence[Block], known: Sequence[int] | None = None) -> list[tuple[Block, int]]:
    """Blocks from the seeds' on, each with the first row for which no earlier hop has drawn.

    `known` gives these rows where the blocks are of one relation of several, which need not be in every hop.
    """
    if known is None:
        known = [0, *(block.num_dst for block in reversed(blocks))][: len(blocks)]
    return list(zip(reversed(blocks), known, strict=True))


def by_relation(blocks: Sequence[Block]) -> dict[EdgeType, tuple[list[Block], list[int]]]:
    """The blocks of every relation that has edges in some layer, outermost first, and what `new_rows` calls known."""
    kinds = dict.fromkeys(kind for block in blocks for kind in block.relations)
    drawn = (
        [dict.fromkeys(blocks[0].dst_counts, 0), *(block.dst_counts for block in reversed(blocks))] if blocks else []
    )
    found = {}
    for kind in kinds:
        known = [rows[kind[2]] for rows, block in zip(drawn, reversed(blocks), strict=False) if kind in block.relations]
        found[kind] = [block.relations[kind] for block in blocks if kind in block.relations], known
    return found


@njit(nogil=True, cache=True)
def _write_lists(indptr: Array, indices: Array, first: int, pair: Array, written: int) -> int:
    """Write the pairs (source row, destination row) of the lists from row `first` on; returns how many there are."""
    for row in range(first, indptr.shape[0] - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            pair[0, written] = indices[edge]
            pair[1, written] = row
            written += 1
    return written


def merge_edge_rows(blocks: Sequence[Block], name: str, known: Sequence[int] | None = None) -> Any:
    """`edge_attr` or `edge_weight` of the edges that `merge_edges` gives, in that order; None where there are none."""
    import torch

    found = [(getattr(block, name), int(block.indptr[first])) for block, first in new_rows(blocks, known)]
    return None if any(rows is None for rows, _ in found) else torch.cat([rows[start:] for rows, start in found])
