"""A run decides its order of products once: it goes on alike, whatever its machine was measured at meanwhile."""

import yaml

from operator_profiles import operator_profile
from penstock.cost.model import machine_order_costs
from penstock.cost.profile import write_profile
from penstock.nn import GCN
from penstock.nn.operator_costs import shipped_order_costs
from penstock.train.auto_values import with_order_costs
from penstock.train.job import make_job
from penstock.train.run import resume_run
from penstock.train.run_files.run_folder import RunFolder
from training_graphs import assert_same_state, community_graph, newest_checkpoint, trained

MODEL = {"model": "gcn", "hidden": 8, "dropout": 0.0}


def costs_in(run):
    return yaml.safe_load((run / "decided.yaml").read_text())["order_costs"]


def dear_products(tmp_path):
    """A profile by which every layer aggregates first."""
    path = tmp_path / "products.json"
    write_profile(operator_profile(rate=1e-12, dense=1.0, dense_weight_gradient=1.0, dense_input_gradient=1.0), path)
    return path


def dear_lists(tmp_path):
    """A profile by which layers that narrow transform first."""
    path = tmp_path / "lists.json"
    write_profile(operator_profile(rate=1e-12, aggregate=1.0, aggregate_backward=1.0), path)
    return path


def test_a_resumed_run_decides_as_it_began(tmp_path, monkeypatch):
    graph = community_graph()
    monkeypatch.setenv("PENSTOCK_OPERATORS", str(dear_products(tmp_path)))
    costs = {name: each.model_dump(mode="json") for name, each in machine_order_costs().items()}
    trained(graph, tmp_path / "whole", **MODEL, epochs=3)
    trained(graph, tmp_path / "halves", **MODEL, epochs=2)
    assert costs_in(tmp_path / "whole") == costs_in(tmp_path / "halves")
    assert costs_in(tmp_path / "whole")["cpu"]["rates"] == costs["cpu"]["rates"]
    monkeypatch.setenv("PENSTOCK_OPERATORS", str(dear_lists(tmp_path)))
    resume_run(tmp_path / "halves", graph, epochs=3)
    assert_same_state(newest_checkpoint(tmp_path / "whole"), newest_checkpoint(tmp_path / "halves"))
    assert costs_in(tmp_path / "halves") == costs_in(tmp_path / "whole")
    assert RunFolder.open(tmp_path / "halves").job().order_costs["cpu"].measured_on == "a made processor"


def test_orders_that_were_chosen_need_no_costs(tmp_path):
    trained(community_graph(), tmp_path / "run", **MODEL, order=["transform", "aggregate"])
    assert costs_in(tmp_path / "run") == {}
    assert RunFolder.open(tmp_path / "run").job().order == ["transform", "aggregate"]


def test_a_model_that_was_built_before_keeps_its_costs(tmp_path, monkeypatch):
    """It was built with those that come with Penstock."""
    monkeypatch.setenv("PENSTOCK_OPERATORS", str(dear_lists(tmp_path)))
    trained(community_graph(), tmp_path / "run", model=GCN(4, 4, hidden=8, layers=2, dropout=0.0))
    shipped = {name: each.model_dump(mode="json") for name, each in shipped_order_costs().items()}
    assert costs_in(tmp_path / "run")["cpu"]["rates"] == shipped["cpu"]["rates"]


def test_costs_are_decided_once():
    job = make_job({"graph": "g", "model": "gcn"})
    decided = with_order_costs(job)
    assert decided.order_costs == shipped_order_costs()
    assert with_order_costs(decided) is decided
    own = make_job({"graph": "g", "module": "a.py:M"})
    assert with_order_costs(own) is own
