"""The fields that a loader takes, what PyG calls them, and the job that is made of them."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.documents import validated
from penstock.graph.folder import Graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.nn.layer_table import WITHOUT_LAYERS
from penstock.pipeline.options import PipelineFields
from penstock.pipeline.stages import Batch
from penstock.sampling.block import Block, by_relation, merge_edges, merge_values
from penstock.sampling.device.block import host_block
from penstock.sampling.entry import SamplerFacts
from penstock.sampling.induced import induce_between
from penstock.sampling.sampler_table import DEFAULT_SAMPLER, SAMPLERS, SamplerOptions, sampler_facts
from penstock.train.internals import REMOVED
from penstock.train.job import OTHER_NAMES, Job, JobFields
from penstock.train.job_options import DataOptions

# Which edges a batch has between its vertices: those that were drawn, their reverses too, or all that there are.
#
# PyG calls this `subgraph_type`: directional, bidirectional or induced.

SubgraphType = Literal["directional", "bidirectional", "induced"]


class EdgeList(NamedTuple):
    """Pairs [2, edges] of rows, and the edges' positions in the graph's lists; None where some have none."""

    pairs: Array
    positions: Array | None


def drawn_edges(batch: Batch, edge_types: list[EdgeType]) -> dict[EdgeType, EdgeList]:
    """The edges that were drawn, by the relations that have any; a vertex's list once."""
    found = {}
    for kind, (several, known) in by_relation([block.named(edge_types) for block in batch.blocks]).items():
        hosts: list[Block] = [host_block(block) for block in several]
        found[kind] = EdgeList(merge_edges(hosts, known), merge_values(hosts, "edges", known))
    return found


def bidirectional_edges(batch: Batch, edge_types: list[EdgeType]) -> dict[EdgeType, EdgeList]:
    """Every edge that was drawn and its reverse, each once, ascending by destination and then by source.

    In a graph of one relation a reverse has the number of the edge that it turns round, unless it was drawn itself. In
    one of several it has none, and then no edge of the relation has.
    """
    drawn = drawn_edges(batch, edge_types)
    if len(edge_types) == 1:
        ((kind, edges),) = drawn.items()
        both = _joined(edges.pairs, edges.pairs)
        positions = None if edges.positions is None else np.concatenate([edges.positions, edges.positions])
        pairs, first = _once(both)
        return {kind: EdgeList(pairs, None if positions is None else positions[first])}
    nothing = EdgeList(np.empty((2, 0), np.int64), None)
    found = {}
    for kind in edge_types:
        turned = drawn.get(reverse_type(kind, edge_types), nothing).pairs
        pairs, _ = _once(_joined(drawn.get(kind, nothing).pairs, turned))
        found[kind] = EdgeList(pairs, None)
    return found


def reverse_type(kind: EdgeType, edge_types: list[EdgeType]) -> EdgeType:
    """The relation that turns one round: the one that PyG's `ToUndirected` adds, itself, or the only one there is."""
    source, relation, destination = kind
    forward = relation.removeprefix("rev_").removeprefix("rev-")
    named = [(destination, f"rev_{relation}", source), (destination, f"rev-{relation}", source)]
    if forward != relation:
        named = [(destination, forward, source)]
    for other in named:
        if other in edge_types:
            return other
    if source == destination:
        return kind
    turned = [other for other in edge_types if (other[0], other[2]) == (destination, source)]
    if len(turned) != 1:
        raise PenstockError(
            f"subgraph_type bidirectional needs a reverse of {edge_key(kind)}, and the graph has {len(turned)}"
            f" relations from {destination} to {source}: add rev_{relation} with PyG's ToUndirected, or use induced.",
            code="unsupported-combination",
        )
    return turned[0]


def induced_edges(graph: Graph, batch: Batch, edge_types: list[EdgeType]) -> dict[EdgeType, EdgeList]:
    """All edges between the batch's vertices, but those whose existence it is asked for."""
    rows = {name: _on_host(ids) for name, ids in batch.vertices.items()}
    left_out: Mapping[EdgeType, Array] = {}
    if batch.links is not None:
        exclude = batch.links.exclude
        left_out = exclude if isinstance(exclude, dict) else {edge_types[0]: exclude}
    found = {}
    for kind in edge_types:
        sources, targets = rows[kind[0]], rows[kind[2]]
        edges = graph.edges[kind]
        pairs, positions = induce_between(edges.indptr, edges.indices, graph.nodes[kind[0]].count, sources, targets)
        if kind in left_out and left_out[kind].size:
            count = graph.nodes[kind[0]].count
            keys = targets[pairs[1]].astype(np.int64) * count + sources[pairs[0]]
            kept = ~np.isin(keys, left_out[kind][1].astype(np.int64) * count + left_out[kind][0])
            pairs, positions = pairs[:, kept], positions[kept]
        found[kind] = EdgeList(pairs, positions)
    return found


def _joined(pairs: Array, turned: Array) -> Array:
    return np.concatenate([pairs, turned[::-1]], axis=1)


def _once(pairs: Array) -> tuple[Array, Array]:
    """Different pairs, ascending by the second row and then by the first; and where each comes first."""
    width = 1 + int(pairs[0].max()) if pairs.size else 1
    _, first = np.unique(pairs[1] * width + pairs[0], return_index=True)
    return np.ascontiguousarray(pairs[:, first]), first


def _on_host(ids: Any) -> Array:
    return ids if isinstance(ids, np.ndarray) else ids.cpu().numpy()


class LoaderJob(Job):
    """A job whose batches are for any model, and what a loader alone can be asked for."""

    disjoint: bool = Field(False, description="every seed has a neighbourhood of its own; `batch.batch` says whose")
    subgraph_type: SubgraphType = Field(
        "directional",
        description="edges of a batch: those that were drawn, their reverses too (bidirectional), or all between its"
        " vertices (induced)",
    )
    exclude_edges: bool = Field(True, description="tasks on edges: a batch's edges are not in its neighbourhoods")
    drop_last: bool = Field(False, description="leave out an epoch's last batch where it is smaller than the others")
    as_pyg: bool = Field(False, description="give each batch as PyG's Data or HeteroData")

    @property
    def needs_totals(self) -> bool:
        """Blocks say how long whole lists are, whichever model reads them."""
        return True

    @property
    def has_own_module(self) -> bool:
        """The model is the user's, and reads weights of edges as rows."""
        return True

    @property
    def names_edges(self) -> bool:
        """Edges bring their numbers and all their fields."""
        return True

    @property
    def has_disjoint_seeds(self) -> bool:
        """Whether every seed has a neighbourhood of its own, as `disjoint` says."""
        return self.disjoint

    @property
    def excludes_examples(self) -> bool:
        """Whether the edges that a batch is asked for are left out of its neighbourhoods, as `exclude_edges` says."""
        return self.exclude_edges


_OF_DATA = set(DataOptions.model_fields) - {"graph", "split"}
_OF_SAMPLERS = set(SamplerOptions.model_fields)
OF_NEGATIVES = frozenset({"negatives", "negatives_per_edge", "filtered", "corrupt"})
_OF_BATCHES = {"held_out", "batch_size", "layers", "seed", "draws", "threads", "reuse_batches"}
_OF_DEVICES = {"device", "placement", "sample_on", "feature_type", "device_share"}
_OF_PIPELINES = set(PipelineFields.model_fields)
_OWN = set(LoaderJob.model_fields) - set(Job.model_fields)
LOADER_FIELDS = frozenset(_OF_DATA | _OF_SAMPLERS | OF_NEGATIVES | _OF_BATCHES | _OF_DEVICES | _OF_PIPELINES | _OWN)
"""Fields of a job that `ps.loader` takes by their names. Those left out are of the model and of its training."""

PYG_ARGUMENTS: dict[str, str] = {
    "data": "give the graph first: ps.loader(data, ...).",
    "num_neighbors": "use fanouts; a mapping of edge types to lists is taken too.",
    "input_nodes": "use split, the second argument: ps.loader(data, mask), or ('paper', mask).",
    "input_time": "use seed_time, which names the field with the seeds' times.",
    "edge_label_time": "use seed_time, which names the field with the edges' times.",
    "time_attr": "use time, which names a field of edges, or node:NAME for one of vertices.",
    "temporal_strategy": "neighbours that are not later are drawn uniformly; last has no counterpart.",
    "weight_attr": "use weight.",
    "neg_sampling_ratio": "use negatives_per_edge (1.0: negatives_per_edge=1); it replaces one end of a true edge, with"
    " corrupt='both' each.",
    "neg_sampling": "use negatives_per_edge; the rows of triplets are batch.links.source_rows, destination_rows and"
    " negative_destination_rows.",
    "num_workers": "use sample_threads: threads draw ahead, and nothing has to be pickled.",
    "prefetch_factor": "leave it out: each stage has batches waiting for the next.",
    "persistent_workers": "leave it out: threads share the graph, and start in microseconds.",
    "worker_init_fn": "leave it out: there are no worker processes.",
    "multiprocessing_context": "leave it out: there are no worker processes.",
    "timeout": "leave it out: there are no worker processes to wait for.",
    "in_order": "leave it out: batches come in order.",
    "pin_memory": "leave it out: batches on the way to a GPU are gathered into pinned memory.",
    "pin_memory_device": "leave it out, and use device.",
    "generator": "use seed.",
    "filter_per_worker": "leave it out: features are gathered by the pipeline's threads.",
    "is_sorted": "leave it out: any order of edges is taken, and batch.e_id counts in yours.",
    "directed": "use subgraph_type='induced' for directed=False.",
    "neighbor_sampler": "use sampler, which names one (docs/sampling.md).",
    "node_sampler": "use sampler, which names one (docs/sampling.md).",
    "link_sampler": "use sampler, which names one (docs/sampling.md).",
    "batch_sampler": "give the vertices in your order, and shuffle=False.",
    "dataset": "give the graph first: ps.loader(data, ...).",
    "collate_fn": "use transform, which is called with each batch.",
    "custom_cls": "use as_pyg=True, and transform to make an object of your own.",
    "transform_sampler_output": "use transform, which is called with each batch.",
    "input_id": "leave it out: batch.input_id are the places of the seeds in what was given.",
    "num_samples": "use fanouts.",
    "num_steps": "leave it out: an epoch goes through all seeds.",
}
"""What arguments of PyG's loaders, and of torch's, are called here, or why they are not needed."""


def make_loader_job(fields: dict[str, Any], splits: str) -> LoaderJob:
    """A checked job of a loader's arguments, which holds nothing out by default; `splits`: job field `split`."""
    for name in fields:
        if name not in LOADER_FIELDS:
            raise PenstockError(f"ps.loader: {name!r} {_why_not(name)}", code="unknown-name")
    sampler = str(fields.get("sampler", DEFAULT_SAMPLER))
    if sampler in SAMPLERS and not SAMPLERS[sampler].makes_batches:
        raise PenstockError(
            f"ps.loader gives batches, and sampler {sampler} makes none: use fanouts of -1, or ps.train.",
            code="unsupported-combination",
        )
    facts = sampler_facts(sampler) if sampler in SAMPLERS else SamplerFacts()
    sizes = {"fanouts": [15, 10], **facts.sizes}
    hops = {"fanouts": _hops(fields["fanouts"])} if "fanouts" in fields else {}
    given = {"held_out": [0.0, 0.0], **sizes, **fields, **hops, "split": splits}
    if facts.seeds_only:
        # Of the models, one without layers is given the seeds alone.
        given["model"] = next(iter(WITHOUT_LAYERS))
    job = validated(LoaderJob, given, "ps.loader")
    _check(job)
    return job


def _check(job: LoaderJob) -> None:
    if job.subgraph_type == "induced" and (job.disjoint or job.time is not None):
        raise PenstockError(
            "subgraph_type induced joins all vertices of a batch, and disjoint or `time` keep seeds apart: use"
            " directional or bidirectional.",
            code="conflicting-options",
        )


def _why_not(name: str) -> str:
    if name in PYG_ARGUMENTS:
        return f"is PyG's: {PYG_ARGUMENTS[name]}"
    if name in REMOVED:
        return f"is no field any more: {REMOVED[name]}."
    why = "is a field of training, not of batches" if name in JobFields.model_fields else "is unknown"
    other = OTHER_NAMES.get(name, name)
    return f"{why}: use {other}." if other in LOADER_FIELDS else f"{why}{nearest(name, sorted(LOADER_FIELDS))}"


def _hops(fanouts: Any) -> Any:
    """Fan-outs as a job has them, hop by hop and relations by their keys; PyG has a list for each edge type."""
    if isinstance(fanouts, Mapping):
        lists = {_key(kind): numbers for kind, numbers in fanouts.items()}
        for key, numbers in lists.items():
            if isinstance(numbers, int) or len(numbers) != len(next(iter(lists.values()))):
                raise PenstockError(
                    f"ps.loader: fanouts of {key} are {numbers!r}: give a list for each edge type, with a number for"
                    " each hop.",
                    code="shape-mismatch",
                )
        return [dict(zip(lists, hop, strict=True)) for hop in zip(*lists.values(), strict=True)]
    if isinstance(fanouts, int | str) or fanouts is None:
        return fanouts
    return [
        {_key(kind): number for kind, number in hop.items()} if isinstance(hop, Mapping) else hop for hop in fanouts
    ]


def _key(kind: Any) -> Any:
    return edge_key(kind) if isinstance(kind, tuple) and len(kind) == 3 else kind
