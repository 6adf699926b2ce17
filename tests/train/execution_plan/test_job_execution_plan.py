"""The execution plan of a job: what its batches are made of, what it leaves open, and the command that prints it."""

import pytest

from in_process import answer, command, refusal
from operator_profiles import gpu_profile, operator_profile
from penstock.cost.model import CostModel
from penstock.cost.profile import write_profile
from penstock.graph.folder import write_graph
from penstock.train.execution_plan import fields_of, plan_execution
from penstock.train.job import make_job
from refusals import check_refusal, refused
from training_graphs import community_graph, trained, typed_graph

FIELDS = {"batch_size": 16, "fanouts": [4, 3], "hidden": 8, "device": "cpu", "threads": 2}


def planned(costs=None, **more):
    return plan_execution(make_job({**FIELDS, **more}), community_graph(), costs or CostModel(operator_profile()))


def test_batches_are_counted():
    kind = planned().kind
    assert len(kind.blocks) == 2 and kind.blocks[1].dst == 16
    assert kind.blocks[0].dst == kind.blocks[1].src <= kind.blocks[0].src
    assert kind.widths[0][1] == 8 and kind.table_rows == community_graph().num_nodes
    assert kind.batches == -(-len(community_graph().split("train")) // 16)
    assert kind.hit_rate(0) == 0 and kind.hit_rate(kind.table_rows) == 1


def test_every_way_that_the_job_allows_is_compared():
    ways = {each.choice.first_layer for each in planned().plan.alternatives}
    assert ways == {"gather", "aggregate", "transform"}
    assert {each.choice.first_layer for each in planned(input_dropout=0.1).plan.alternatives} == {"gather"}
    assert {each.choice.first_layer for each in planned(model="gat").plan.alternatives} == {"gather"}
    assert {each.choice.groups for each in planned().plan.alternatives} == {1, 16}


def test_models_whose_steps_are_known():
    """A layer that can be given aggregates has them compared; relations are read row by row."""
    for model, ways in {"gin": {"gather", "aggregate", "transform"}, "rgcn": {"gather"}}.items():
        found = planned(model=model).plan
        assert {each.choice.first_layer for each in found.alternatives} == ways
        assert {each.choice.order[1] for each in found.alternatives} == {"aggregate", "transform"}
    on_gpu = planned(CostModel(gpu_profile()), model="gin", device="cuda").plan
    divided = [each.choice for each in on_gpu.alternatives if each.choice.first_layer == "divided"]
    assert divided and {each.features for each in divided} == {"pinned"}
    assert make_job({**FIELDS, **fields_of(divided[0])}).first_layer == "divided"


def test_a_job_that_asks_for_a_division_is_planned_for_a_gpu():
    found = planned(CostModel(gpu_profile()), first_layer="divided", device="cuda").plan
    assert "divided" in {each.choice.first_layer for each in found.alternatives}


def test_a_gpu_is_planned_for_without_one():
    model = CostModel(gpu_profile())
    found = planned(model, device="auto").plan
    assert {each.choice.device for each in found.alternatives} == {"cpu", "cuda"}
    assert {each.choice.features for each in found.alternatives} == {"host", "pinned", "device"}
    assert {each.choice.sampled_by for each in found.alternatives} == {"cpu", "cuda"}
    assert {each.choice.device for each in planned(model, device="cuda").plan.alternatives} == {"cuda"}
    with refused("missing-data cuda --profile"):
        planned(device="cuda")


def test_every_alternative_of_the_host_can_be_trained(tmp_path):
    for number, each in enumerate(planned().plan.alternatives):
        run = trained(community_graph(), tmp_path / str(number), epochs=1, **{**FIELDS, **fields_of(each.choice)})
        assert run.result["steps"] > 0


def test_jobs_that_the_model_does_not_know_are_refused():
    with refused("unsupported-combination labor neighbour"):
        planned(sampler="labor")
    with refused("unsupported-combination transformer sage"):
        planned(model="transformer")
    with refused("unsupported-combination types"):
        plan_execution(make_job({**FIELDS, "fanouts": [2, 2]}), typed_graph(), CostModel(operator_profile()))


@pytest.fixture
def given(tmp_path):
    """A graph folder and a profile of operators, as flags of the command."""
    write_graph(community_graph(), tmp_path / "graph")
    write_profile(gpu_profile(), tmp_path / "machine.json")
    flags = ["--graph", tmp_path / "graph", "--batch-size", "16", "--fanouts", "4,3", "--hidden", "8"]
    return ["plan", "--execution", "--profile", tmp_path / "machine.json", *flags]


def test_the_command_prints_the_plan(given, monkeypatch, capsys):
    found = answer(monkeypatch, capsys, *given)
    assert found["chosen"] == found["alternatives"][0]
    assert found["chosen"]["epoch_s"] == pytest.approx(found["chosen"]["batch_s"] * found["batches"])
    assert found["chosen"]["limit"] in found["chosen"]["use"]
    assert make_job(found["chosen"]["fields"]).first_layer == found["chosen"]["first_layer"]
    assert found["machine"]["gpu"] == "a made GPU"
    code, said, _ = command(monkeypatch, capsys, *given, "--device-memory", "1GB")
    assert code == 0
    assert "Chosen: device: " in said and "The limit is " in said


def test_flags_of_other_plans_are_refused(given, monkeypatch, capsys):
    said = refusal(monkeypatch, capsys, *given, "--flows", "fair")
    check_refusal(said.code, said, "unsupported-combination --flows --execution")
    said = refusal(monkeypatch, capsys, "plan", "--device-memory", "1GB")
    check_refusal(said.code, said, "unsupported-combination --device-memory --execution")
