import json

from penstock.cost.throughput import loaded, measure_epoch, measure_sampling, measure_steps, sage_step, seed_batches
from penstock.graph.data import NodeSet
from penstock.graph.folder import Graph
from random_graphs import power_law_graph
from refusals import refused


def labelled(graph: Graph) -> Graph:
    import numpy as np

    count = graph.num_nodes
    fields = {"x": np.ones((count, 4), np.float32), "y": np.arange(count) % 3}
    return Graph({"node": NodeSet(count, fields)}, graph.edges)


def test_rows_count_what_was_drawn():
    graph = labelled(power_law_graph())
    batches = seed_batches(graph, 32, 4)
    rows = [measure_sampling(graph, batches, [3, 2], threads, gather=True, rounds=1) for threads in (1, 2)]
    assert rows[0]["edges_per_batch"] == rows[1]["edges_per_batch"] > 32
    assert [row["threads"] for row in rows] == [1, 2]
    ready = [loaded(graph, number, seeds, [3, 2]) for number, seeds in enumerate(batches)]
    steps = measure_steps({"a": sage_step(graph, 8, 2), "b": sage_step(graph, 8, 2)}, ready)
    assert [row["what"] for row in steps] == ["a", "b"]
    assert steps[0]["ratio"] == 1
    assert measure_epoch(graph, batches, [3, 2], 8)["cpu_seconds_per_batch"] > 0


def test_seeds_are_training_vertices_where_there_are_some():
    graph = labelled(power_law_graph())
    graph.nodes["node"].splits["train"] = split = graph.y[:10].argsort()
    (batch,) = seed_batches(graph, 100, 5)
    assert sorted(batch) == sorted(split)


def test_the_command_prints_rows(tmp_path, capsys, monkeypatch):
    from penstock.cli.profile import sampling_command, training_command

    folder = tmp_path / "graph"
    labelled(power_law_graph()).save(folder)
    small = {"graph": str(folder), "fanouts": "3,2", "batch_size": 32, "batches": 2, "as_json": True}
    sampling_command(**small)
    training_command(**small, hidden=8)
    sampling, training = (json.loads(line)["rows"] for line in capsys.readouterr().out.splitlines())
    assert {row["gather"] for row in sampling} == {False, True}
    assert set(training[0]) == {"what", "seconds_per_batch", "cpu_seconds_per_batch", "ratio"}
    with refused("invalid-value 15,10,5"):
        sampling_command(**{**small, "fanouts": "3;2"})
