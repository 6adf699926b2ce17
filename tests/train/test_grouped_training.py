"""Training on batches that are drawn in groups gives the same bits as any other way to draw them."""

import pytest
from test_resume import Trouble, assert_same_runs, interrupt

from penstock.api import train
from refusals import refused
from training_graphs import community_graph, trained

WAYS = [{"groups": 3}, {"groups": "auto", "shuffle": "never", "reuse_batches": True}]


@pytest.mark.parametrize("fields", WAYS)
def test_equal_bits_with_any_groups(fields, tmp_path):
    graph = community_graph()
    plain = {name: value for name, value in fields.items() if name != "groups"}
    one = trained(graph, tmp_path / "one", **plain, epochs=3)
    path = tmp_path / "groups"
    assert trained(graph, path, **fields, epochs=3, progress=Trouble(5, interrupt)).state == "interrupted"
    run = train(graph, resume=path)
    assert_same_runs(one, run)
    assert "groups" not in one.result
    assert run.result["groups"]["drawn"] > 0 and run.result["groups"]["processors"] == ["cpu"]


def test_the_whole_graph_has_no_batches_to_group(tmp_path):
    with refused("unsupported-combination whole groups"):
        trained(community_graph(), tmp_path / "run", sampler="whole", layers=2, groups=4)
