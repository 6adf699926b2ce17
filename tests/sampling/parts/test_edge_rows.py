"""Fields of drawn edges are rows: over parts, the numbers that blocks have name the same rows as in the uncut graph."""

import json
from dataclasses import replace

import numpy as np
import pytest
from cut_and_sampled import KEY, cut_at_random, parted_batch, plain_graph, some_edges, typed_graph, whole_batch

from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.schema import edge_key
from penstock.partition import open_partition
from penstock.sampling import NeighbourSampler
from penstock.sampling.cluster import ClusterSampler
from penstock.sampling.labor import Labor
from penstock.sampling.layerwise import FastGCN
from penstock.sampling.links.edge_split import split_and_tell
from penstock.sampling.parts import (
    OwnedPart,
    RemoteSampler,
    SharedSampler,
    parted_graph,
    parted_labor,
    parted_sampler,
    serve_batches,
    serve_lists,
)
from penstock.sampling.saint import Saint
from penstock.store.parts import PartedStore, StoreService
from penstock.store.source import LocalStore
from refusals import refused

SEEDS = np.array([7, 0, 299, 31, 150, 12])
TYPED_SEEDS = {"item": np.array([4, 1, 69]), "user": np.array([100, 3])}


def with_rows(graph):
    """Each edge has a row `v` of three numbers, and its position `at`."""
    rng = np.random.default_rng(1)
    for edges in graph.edges.values():
        edges.fields["v"] = rng.random((edges.count, 3)).astype(np.float32)
        edges.fields["at"] = np.arange(edges.count)
    return graph


def blocks_by_relation(batch, graph):
    """(relation's key, block) of every layer and relation."""
    for layer in batch.blocks:
        yield from ((edge_key(kind), block) for kind, block in layer.named(graph.edges).relations.items())


def assert_same_edge_rows(graph, store, parted, whole):
    """What a store over parts has for the parted batch's edges is what the graph has for the whole batch's."""
    one = LocalStore.of_graph(graph)
    pairs = list(zip(blocks_by_relation(parted, graph), blocks_by_relation(whole, graph), strict=True))
    assert pairs
    for (name, block), (_, exact) in pairs:
        assert len(block.edges) == block.num_edges == exact.num_edges
        assert (block.weights is None) == (exact.weights is None)
        if exact.weights is not None:
            np.testing.assert_array_equal(block.weights, exact.weights)
        for field in ("v", "at"):
            source, same = store.source(f"{name}/{field}"), one.source(f"{name}/{field}")
            assert source.shape == same.shape
            np.testing.assert_array_equal(source.read(block.edges), same.read(exact.edges))
        some = store.source(f"{name}/v").read(block.edges, columns=[2, 0])
        np.testing.assert_array_equal(some, one.source(f"{name}/v").read(exact.edges, columns=[2, 0]))


def store_here(partition):
    """A store over parts that are all mapped in this process."""
    return PartedStore(
        partition.book, {p: LocalStore.of_graph(partition.part(p)) for p in range(partition.parts)}, None
    )


HOW = [{}, {"weight": "w", "replace": True}, {"weight": "w", "uniform": True}]


@pytest.mark.covering(1)
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_parts_here(tmp_path, parts, how):
    how = {"fanouts": [4, -1, 3], "edges": True, **how}
    for graph, seeds in ((with_rows(plain_graph()), SEEDS), (with_rows(typed_graph()), TYPED_SEEDS)):
        partition = cut_at_random(graph, parts, tmp_path / graph.name)
        parted = parted_batch(partition, parted_sampler(partition, **how), seeds)
        assert_same_edge_rows(graph, store_here(partition), parted, whole_batch(graph, seeds, how))


@pytest.mark.parametrize("weight", [None, "w"])
def test_parts_stores_and_samplers_behind_the_wire(tmp_path, posts, weight):
    """Some edges excluded; batches also drawn by a sampler task; stores hold the parts in turn."""
    graph = with_rows(typed_graph())
    partition = cut_at_random(graph, 4, tmp_path)
    worker, helper, *stores = posts("worker", "sampler", "store-0", "store-1")
    for number, endpoint in enumerate(stores):
        serve_lists(endpoint, {p: OwnedPart.of(partition, p) for p in range(number, 4, 2)})
        StoreService(endpoint, {p: partition.part(p) for p in range(number, 4, 2)})
    how = {"fanouts": [3, -1], "edges": True, "weight": weight}
    exclude = {kind: some_edges(edges) for kind, edges in graph.edges.items()}
    whole = whole_batch(graph, TYPED_SEEDS, how, exclude)
    here = {1: LocalStore.of_graph(partition.part(1))}
    store = PartedStore(partition.book, here, lambda part: worker.channel(f"store-{part % 2}", "features"))
    serve_batches(
        helper,
        {"train": parted_sampler(partition, **how, channels=lambda part: helper.channel(f"store-{part % 2}", "draws"))},
    )
    counts = {name: partition.book.count(name) for name in partition.book.node_types}
    for sampler in (
        parted_sampler(partition, **how, channels=lambda part: worker.channel(f"store-{part % 2}", "draws")),
        RemoteSampler([worker.channel("sampler", "batches")], "train", counts),
    ):
        assert_same_edge_rows(graph, store, parted_batch(partition, sampler, TYPED_SEEDS, exclude), whole)
    traffic = store.traffic()["user__buys__item/v"]
    assert 0 < traffic.rows * 12 == traffic.bytes


def test_edges_held_out_and_edges_in_time(tmp_path, owners):
    """Numbers are those of the stored edges, also where lists without some edges are drawn from."""
    graph = with_rows(plain_graph())
    ((kind, edges),) = graph.edges.items()
    split, absent = split_and_tell(graph, kind, (0.2, 0.1), 5)
    rng = np.random.default_rng(0)
    edges.fields["t"], graph.nodes["node"].fields["t"] = rng.integers(0, 9, edges.count), rng.integers(0, 9, 300)
    partition = cut_at_random(graph, 3, tmp_path)
    store, (_, channels) = store_here(partition), owners(partition)
    new, times = partition.new_ids(SEEDS), np.array([8, 5, 3, 6, 9, 4])
    for local in ({}, {1: OwnedPart.of(partition, 1)}):
        where = {"local": local, "channels": channels, "edges": True}
        whole = NeighbourSampler(split, [4, -1], edges=True).sample(SEEDS, KEY)
        parted = parted_sampler(partition, [4, -1], absent=absent, **where).sample(new, KEY)
        assert_same_edge_rows(graph, store, parted, _at_stored_positions(whole, split))
        for time, weight in (("t", None), ("node:t", None), ("node:t", "w")):
            exact = NeighbourSampler(graph, [3, -1], edges=True, time=time, weight=weight)
            when = graph.nodes["node"].fields["t"][partition.original()] if time == "node:t" else None
            sampler = parted_sampler(partition, [3, -1], weight=weight, time=time, vertex_times=when, **where)
            drawn = sampler.sample(new, KEY, times=times)
            assert_same_edge_rows(graph, store, drawn, exact.sample(SEEDS, KEY, times=times))


def _at_stored_positions(batch, split):
    """A batch of a split graph, with the positions that its edges had before."""
    (edges,) = split.edges.values()
    return replace(batch, blocks=[replace(block, edges=edges.fields["at"][block.edges]) for block in batch.blocks])


@pytest.mark.parametrize("kind", ["labor", "fastgcn", "saint", "cluster"])
def test_other_samplers(tmp_path, owners, kind):
    """Of batches that are drawn whole, a worker's share has the numbers of its edges."""
    graph = with_rows(plain_graph())
    partition = cut_at_random(graph, 3, tmp_path)
    _, channels = owners(partition)
    local, clusters, train = {1: OwnedPart.of(partition, 1)}, np.arange(300) % 7, np.arange(0, 300, 4)
    made = {
        "labor": lambda graph, train, clusters: Labor(graph, [4, -1], edges=True),
        "fastgcn": lambda graph, train, clusters: FastGCN(graph, [25, 40], edges=True),
        "saint": lambda graph, train, clusters: Saint(graph, train, "edge", 12),
        "cluster": lambda graph, train, clusters: ClusterSampler(graph, clusters, train),
    }[kind]
    items = {"saint": np.array([0]), "cluster": np.array([4, 1])}.get(kind, SEEDS)
    new = partition.new_ids(SEEDS) if kind in ("labor", "fastgcn") else items
    whole = made(graph, train, clusters).sample(items, KEY)
    if kind == "labor":
        sampler = parted_labor(partition, [4, -1], True, local=local, channels=channels)
        assert_same_edge_rows(graph, store_here(partition), sampler.sample(new, KEY), whole)
        return
    lists = parted_graph(partition, kind, local, channels)
    inner = made(lists, partition.new_ids(train), clusters[partition.original()])
    drawn = SharedSampler(lists, inner, edges=True).sample(new, KEY)
    assert_same_edge_rows(graph, store_here(partition), drawn, whole)
    share = SharedSampler(lists, inner, lambda vertices: np.arange(0, len(vertices), 2), edges=True).sample(new, KEY)
    at = store_here(partition).source("node__to__node/at")
    for block in share.blocks:
        assert block.num_edges
        ends = share.names["node"][block.indices], share.names["node"][block.destinations()]
        np.testing.assert_array_equal(graph.edges["node", "to", "node"].edge_index()[:, at.read(block.edges)], ends)
    assert all(block.edges is None for block in SharedSampler(lists, inner).sample(new, KEY).blocks)


def test_folders_of_older_releases(tmp_path):
    """Edges are counted where all parts are here; elsewhere everything but their fields is served."""
    graph = with_rows(plain_graph())
    partition = cut_at_random(graph, 2, tmp_path)
    document = partition.path / "partition.json"
    said = json.loads(document.read_text())
    assert said["edge_ranges"] == {"node__to__node": partition.book.edge_bounds("node__to__node").tolist()}
    del said["edge_ranges"]
    document.write_text(json.dumps(said))
    old = open_partition(partition.path)
    np.testing.assert_array_equal(old.book.edge_bounds("node__to__node"), partition.book.edge_bounds("node__to__node"))
    (partition.path / "part1").rename(tmp_path / "elsewhere")
    away = open_partition(partition.path)
    assert away.part(0).num_edges == partition.part(0).num_edges
    store = PartedStore(away.book, {0: LocalStore.of_graph(away.part(0))}, None)
    with refused("missing-data"):
        store.source("node__to__node/v")
    with refused("missing-data"):
        parted_sampler(away, [2], edges=True, local={0: OwnedPart.of(away, 0)}, channels=_never).sample(SEEDS[:1], KEY)


def test_what_a_part_does_not_hold_is_refused(tmp_path):
    partition = cut_at_random(with_rows(plain_graph()), 2, tmp_path)
    store = store_here(partition)
    with refused("unknown-name"):
        store.source("node__of__node/v")
    with refused("id-out-of-range"):
        store.source("node__to__node/v").read(np.array([6000]))
    with refused("unknown-name"):
        store.make("node__to__node/h", 3)
    document = partition.path / "partition.json"
    said = json.loads(document.read_text())
    for ranges, refuses in (([0, 7, 6000], lambda p: p.part(0)), ([0, 6000], None), ([0, 9, 5], None)):
        said["edge_ranges"]["node__to__node"] = ranges
        document.write_text(json.dumps(said))
        with refused("damaged-file"):
            opened = open_partition(partition.path)
            refuses(opened)


def _never(part):
    raise AssertionError(part)


def test_parts_without_edges_of_a_relation(tmp_path):
    """A relation may have all its edges in one part, and none at all."""
    none = EdgeSet(np.zeros(9, np.int64), np.empty(0, np.int32), {"v": np.empty((0, 2), np.float32)})
    one = EdgeSet(np.array([0, 0, 0, 0, 0, 0, 0, 0, 2]), np.array([1, 3], np.int32), {"v": np.eye(2, dtype=np.float32)})
    kinds = ("node", "no", "node"), ("node", "one", "node")
    graph = Graph({"node": NodeSet(8)}, dict(zip(kinds, (none, one), strict=True)), "sparse")
    partition = cut_at_random(graph, 4, tmp_path)
    batch = parted_batch(partition, parted_sampler(partition, [2], edges=True), {"node": np.arange(8)})
    (block,) = (layer.relations["node", "one", "node"] for layer in batch.blocks)
    np.testing.assert_array_equal(store_here(partition).source("node__one__node/v").read(block.edges), np.eye(2))
    assert store_here(partition).source("node__no__node/v").read(np.empty(0, np.int64)).shape == (0, 2)
