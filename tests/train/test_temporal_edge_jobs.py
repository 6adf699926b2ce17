"""Tasks on edges that are sampled by time: what is later than an edge changes neither its batch nor its score."""

import json

import numpy as np
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock import EdgeSet, Graph, NodeSet
from penstock.sampling import BatchKey
from penstock.sampling.links import EdgeBatcher, Uniform
from refusals import refused
from training_graphs import lists_of, trained

FIELDS = {"fanouts": [3, 2], "time": "t", "device": "cpu"}
LINKS = {**FIELDS, "task": "link-prediction"}
RANKED = {**LINKS, "rank_against": 10}
CLASSES = {**FIELDS, "task": "edge-classification", "label": "kind"}
COUNT, EARLY = 60, 400


def stream(late=0, whole=True, typed=False, seed=0):
    """Edges of users to items (or among vertices of one type) at times 0..99; `late` ones more at time 1000."""
    rng, more = np.random.default_rng(seed), np.random.default_rng(9)
    ends = [np.concatenate([rng.integers(0, COUNT, EARLY), more.integers(0, COUNT, late)]) for _ in range(2)]
    times = np.concatenate([rng.integers(0, 100, EARLY), np.full(late, 1000)])
    times = times if whole else times / 7
    kinds = (ends[0] + ends[1]) % 3
    x = rng.normal(size=(COUNT, 5)).astype(np.float32)
    if not typed:
        lists = lists_of(*ends, COUNT, COUNT, t=times, kind=kinds)
        return Graph({"node": NodeSet(COUNT, {"x": x})}, {("node", "to", "node"): lists}, "stream")
    nodes = {"user": NodeSet(COUNT, {"x": x}), "item": NodeSet(COUNT, {"x": x[::-1].copy()})}
    edges = {
        ("user", "buys", "item"): lists_of(*ends, COUNT, COUNT, t=times, kind=kinds),
        ("item", "bought", "user"): lists_of(*ends[::-1], COUNT, COUNT, t=times),
    }
    return Graph(nodes, edges, "shop")


def at_positions(graph, kind, before):
    """Positions of the edges before a time, in the order in which every graph of this file has them."""
    edges = graph.edges[kind]
    return np.flatnonzero(edges.fields["t"] < before)


def losses_of(run):
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    return [record["loss"] for record in map(json.loads, lines) if record["kind"] == "step"]


@pytest.mark.covering(1)
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("corrupt", ["destination", "source"])
def test_later_edges_change_no_batch_of_edges(whole, corrupt):
    """Ends, negatives, their times and their places are the same, filtered negatives and parallel edges included."""
    found = []
    for late in (0, 300):
        graph = stream(late, whole)
        ((kind, edges),) = graph.edges.items()
        batcher = EdgeBatcher(graph, kind, Uniform(8, corrupt, filtered=True), times=edges.fields["t"])
        found.append(batcher.batch(at_positions(graph, kind, 100 if whole else 100 / 7)[:200], BatchKey(0, 1, 2)))
    before, after = found
    for name in ("source", "destination", "negative_source", "negative_destination", "times", "source_rows"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
    np.testing.assert_array_equal(before.nodes["node"], after.nodes["node"])
    np.testing.assert_array_equal(before.node_times["node"], after.node_times["node"])


def test_negatives_have_the_time_of_their_positive_and_are_no_edges_by_then():
    graph = stream()
    ((kind, edges),) = graph.edges.items()
    times = edges.fields["t"]
    batch = EdgeBatcher(graph, kind, Uniform(30, filtered=True), times=times).batch(np.arange(100), BatchKey(0, 0, 0))
    assert batch.clashes == 0
    nodes, when = batch.nodes["node"], batch.node_times["node"]
    assert len(np.unique(np.stack([nodes, when]), axis=1).T) == len(nodes)
    rows = batch.negative_destination_rows
    np.testing.assert_array_equal(nodes[rows], batch.negative_destination)
    np.testing.assert_array_equal(when[rows], np.broadcast_to(batch.times[:, None], rows.shape))
    targets = np.repeat(np.arange(COUNT), np.diff(edges.indptr))
    for source, wrong, time in zip(batch.source, batch.negative_destination, batch.times, strict=True):
        known = targets[(edges.indices == source) & (times <= time)]
        assert not np.isin(wrong, known).any()
    # Pairs that become edges only later are drawn: that they never are would tell what comes.
    later = sum(
        np.isin(wrong, targets[(edges.indices == source) & (times > time)]).sum()
        for source, wrong, time in zip(batch.source, batch.negative_destination, batch.times, strict=True)
    )
    assert later > 0


@pytest.mark.covering(1)
@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("job", [LINKS, CLASSES])
@pytest.mark.parametrize("whole", [True, False])
def test_batches_hold_nothing_that_is_not_before_their_edges(job, typed, whole):
    graph = stream(whole=whole, typed=typed)
    kind = graph.edge_types[0]
    seen = 0
    for batch in ps.loader(graph, batch_size=32, **job, edge_features=["t"], target="__".join(kind)):
        links, blocks = batch.links, batch.blocks
        counts = {name: len(rows) for name, rows in links.nodes.items()}
        times = {
            name: np.concatenate([links.node_times[name], np.full(len(batch.n_id_dict[name]) - counts[name], -1.0)])
            for name in counts
        }
        for block in reversed(blocks):
            relations = block.relations if typed else {kind: block}
            for (source, _, target), part in relations.items():
                reader = times[target][part.destinations()]
                assert (reader >= 0).all()
                times[source][part.indices] = np.where(
                    times[source][part.indices] < 0, reader, times[source][part.indices]
                )
                np.testing.assert_array_equal(times[source][part.indices], reader)
                assert (part.edge_attr[:, 0].numpy() < reader.astype(np.float32)).all()
                seen += part.num_edges
    assert seen > 500


@pytest.mark.covering(1)
@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("job", [RANKED, CLASSES])
def test_what_is_later_than_an_edge_changes_no_score(tmp_path, job, typed):
    """A model is trained once, and its scores of early edges are asked for on graphs with another future."""
    graph = stream(typed=typed)
    kind = "__".join(graph.edge_types[0])
    run = trained(graph, tmp_path / "run", **job, model="rgcn" if typed else "sage", target=kind)
    assert np.isfinite(losses_of(run)).all() and run.val and run.test
    after = run.predict(split="train", graph=stream(300, typed=typed)).to_pydict()
    before = run.predict(split="train").to_pydict()
    value = "score" if "score" in before else "probability"
    # The split by time of the longer stream has more edges to learn from: those of both are compared.
    known = {}
    for source, target, number in zip(after["source"], after["destination"], after[value], strict=True):
        known.setdefault((source, target), []).append(number)
    for source, target, number in zip(before["source"], before["destination"], before[value], strict=True):
        assert min(abs(number - other) for other in known[source, target]) < 1e-5 * (1 + abs(number)), (
            number,
            known[source, target],
        )


def test_links_are_held_out_by_time_and_stay_in_reach_of_later_ones(tmp_path):
    graph = stream()
    run = trained(graph, tmp_path / "run", **RANKED, held_out=[0.2, 0.25])
    times = {split: run.predict(split=split)["time"] for split in ("train", "val", "test")}
    assert [len(times[split]) for split in times] == [220, 80, 100]
    assert pc.max(times["train"]).as_py() <= pc.min(times["val"]).as_py()
    assert pc.max(times["val"]).as_py() <= pc.min(times["test"]).as_py()
    assert set(run.test) >= {"mrr", "hits@1"}
    # The same pair has another score at another time, which depends on what was there by then.
    early, late = run.predict([(3, 5, 1), (3, 5, 99)])["score"].to_pylist()
    assert early != late
    with refused("option-missing time"):
        run.predict([(3, 5)])
    assert run.evaluate("test") == run.test


def test_a_metric_of_scores_and_learned_rows(tmp_path):
    graph = stream()
    del graph.nodes["node"].fields["x"]
    run = trained(graph, tmp_path / "run", **RANKED, metric="roc-auc", embedding=4, corrupt="both")
    assert 0 <= run.test["roc-auc"] <= 1


@pytest.mark.parametrize("job", [RANKED, CLASSES])
def test_memory_is_predicted(job):
    """The validation of edges computes vertices at times that are not their own."""
    assert ps.memory(stream(), **job, hidden=16, batch_size=32).host > 0


def test_ages_of_edges_are_learned_from(tmp_path):
    run = trained(stream(), tmp_path / "run", **RANKED, model="transformer", heads=2, time_width=4)
    assert np.isfinite(losses_of(run)).all()


def test_reverse_edges_have_their_edges_times():
    """Without times the reverse relation would show what comes later."""
    graph = stream()
    ((kind, edges),) = graph.edges.items()
    loader = ps.loader(graph, batch_size=64, **LINKS, reverse_edges=True, target="__".join(kind))
    ((_, turned),) = [each for each in loader.graph.edges.items() if each[0] != kind]
    one, two = np.asarray(edges.edge_index()), np.asarray(turned.edge_index())
    forward, backward = np.stack([*one, edges.fields["t"]]), np.stack([*two[::-1], turned.fields["t"]])
    np.testing.assert_array_equal(forward[:, np.lexsort(forward)], backward[:, np.lexsort(backward)])


def test_times_of_vertices_bind_neighbours_and_the_edge_itself_is_excluded():
    rng = np.random.default_rng(0)
    graph = stream()
    graph.nodes["node"].fields["born"] = rng.integers(0, 60, COUNT)
    job = {**LINKS, "time": "node:born", "seed_time": "t", "fanouts": [-1]}
    for batch in ps.loader(graph, batch_size=32, **job):
        (block,), links = batch.blocks, batch.links
        born = graph.nodes["node"].fields["born"][batch.n_id.numpy()]
        limits = links.node_times["node"][block.destinations()]
        assert (born[block.indices] < limits).all()
        pairs = set(zip(links.source, links.destination, strict=True))
        n_id = batch.n_id.numpy()
        assert not pairs & set(zip(n_id[block.indices], n_id[block.destinations()], strict=True))


def _bad(**changes):
    return lambda run: trained(stream(), run, **{**RANKED, **changes})


@pytest.mark.parametrize(
    "make, said",
    [
        (_bad(negatives="in-batch"), "unsupported-combination negatives uniform"),
        (_bad(negatives="joint"), "unsupported-combination negatives uniform"),
        (_bad(rank_against=0), "unsupported-combination rank_against"),
        (_bad(seed_time="when"), "field-missing when seed_time"),
        (_bad(time="when"), "field-missing when"),
        (_bad(sampler="labor"), "unsupported-combination labor"),
        (_bad(task="knowledge-graph-completion"), "unsupported-combination time"),
    ],
)
def test_what_does_not_go_by_time_is_refused(tmp_path, make, said):
    with refused(said):
        make(tmp_path / "run")


def test_held_out_edges_without_times_are_refused(tmp_path):
    graph = stream()
    ((kind, edges),) = graph.edges.items()
    held = EdgeSet(edges.indptr, edges.indices, edges.fields, {"val": np.array([[1, 2]])})
    with refused("unsupported-combination val times"):
        trained(Graph(graph.nodes, {kind: held}, "held"), tmp_path / "run", **LINKS)
