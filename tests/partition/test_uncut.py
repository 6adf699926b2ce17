"""A partition of one part that is the graph's own folder: what is written, what it answers, and when it is made."""

import numpy as np
import pytest

from neighbourhoods import same_batch
from penstock import Graph
from penstock.cluster.worker.batch_source import SeedSplit
from penstock.partition import Cut, cut, open_partition, stitch, uncut
from penstock.pipeline.schedule import Schedule
from penstock.sampling import BatchKey, NeighbourSampler
from penstock.sampling.parts import OwnedPart, parted_sampler
from refusals import refused
from training_graphs import community_graph, typed_graph


def _holding():
    """A graph with held-out edges, in an order of their own."""
    graph = community_graph()
    (edges,) = graph.edges.values()
    pairs = np.stack([edges.indices[:20], edges.destinations()[:20]], 1).astype(np.int64)
    edges.held_out["test"] = pairs[::-1].copy()
    return graph


def test_nothing_but_numbers_is_written(tmp_path):
    graph = community_graph().save(tmp_path / "graph")
    partition = uncut(graph, tmp_path / "parts")
    assert sorted(path.name for path in (tmp_path / "parts").rglob("*.npy")) == ["original.npy"]
    np.testing.assert_array_equal(partition.original(), np.arange(graph.num_nodes))
    part = partition.part(0)
    assert partition.has_part(0) and part.path == graph.path and not len(partition.halo(0))
    (edges,), (same,) = graph.edges.values(), part.edges.values()
    np.testing.assert_array_equal(edges.indices, same.indices)


@pytest.mark.parametrize("make", [community_graph, typed_graph, _holding])
def test_it_answers_as_a_cut_into_one_part_does(tmp_path, make):
    graph = make().save(tmp_path / "graph")
    found = uncut(graph, tmp_path / "parts")
    written = cut(graph, Cut(1, 1, "chunk"), tmp_path / "written")
    for name in graph.nodes:
        np.testing.assert_array_equal(found.original(name), written.original(name))
    for kind, edges in graph.edges.items():
        for name in edges.held_out:
            places = [each.held_out_places(0, kind, name) for each in (found, written)]
            np.testing.assert_array_equal(*places)
    for (name, ours), (other, theirs) in zip(stitch(found).arrays(), stitch(written).arrays(), strict=True):
        assert name == other
        np.testing.assert_array_equal(ours, theirs)


def test_shares_of_a_batch_draw_what_one_process_draws(tmp_path):
    """Vertex for vertex: each seed has the neighbours that it has in the whole batch, in every hop."""
    graph = community_graph().save(tmp_path / "graph")
    partition = open_partition(uncut(graph, tmp_path / "parts").path)
    alone = NeighbourSampler(graph, fanouts=[4, 3])
    local = parted_sampler(partition, [4, 3], local={0: OwnedPart.of(partition, 0)})
    items, key = np.arange(0, graph.num_nodes, 2), BatchKey(1, 0, 0)
    planned = next(Schedule(items, 40, 1).from_position())
    seen = []
    for rank in range(3):
        share = SeedSplit(items, items, [1 / 3] * 3, rank).share(planned)
        same_batch(local.sample(share.seeds, key), alone.sample(share.seeds, key))
        whole, part = neighbours(alone.sample(planned.seeds, key)), neighbours(local.sample(share.seeds, key))
        assert part == {vertex: whole[vertex] for vertex in part}
        seen += share.seeds.tolist()
    assert sorted(seen) == sorted(planned.seeds.tolist())


def neighbours(batch) -> dict:
    """By hop and vertex, what was drawn of its list."""
    names, found = batch.vertices[batch.node_type], {}
    for hop, block in enumerate(batch.blocks):
        for row in range(block.num_dst):
            drawn = names[block.indices[block.indptr[row] : block.indptr[row + 1]]]
            found[hop, int(names[row])] = sorted(drawn.tolist())
    return found


def test_a_graph_that_was_changed_in_memory_is_not_as_stored(tmp_path):
    graph = community_graph()
    assert not graph.is_as_stored()
    saved = graph.save(tmp_path / "graph")
    assert saved.is_as_stored()
    (nodes,) = saved.nodes.values()
    features = nodes.fields["x"]
    nodes.fields["x"] = np.array(features)
    assert not saved.is_as_stored()
    nodes.fields["x"] = features
    assert saved.is_as_stored()
    nodes.fields["more"] = features
    assert not saved.is_as_stored()
    del nodes.fields["more"]
    nodes.fields["x"] = features[::-1]
    assert not saved.is_as_stored()


def test_a_folder_that_was_written_anew_is_refused(tmp_path):
    graph = community_graph(80).save(tmp_path / "graph")
    partition = uncut(graph, tmp_path / "parts")
    community_graph(100).save(tmp_path / "graph", force=True)
    with refused("damaged-file graph partition.json"):
        partition.part(0)
    assert Graph.open(tmp_path / "graph").num_nodes == 100
