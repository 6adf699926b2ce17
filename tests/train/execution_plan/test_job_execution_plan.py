"""The execution plan of a job: what its batches are made of, what it leaves open, and the command that prints it."""

import pytest

from in_process import answer, command, refusal
from operator_profiles import gpu_profile, operator_profile
from penstock.cost.model import CostModel
from penstock.cost.profile import FittedOperator, write_profile
from penstock.graph.folder import write_graph
from penstock.train import execution_plan
from penstock.train.execution_plan import fields_of, fit_batches, plan_execution, seconds_of_batch
from penstock.train.job import Job, job_of
from refusals import check_refusal, refused
from training_graphs import community_graph, trained, typed_graph

FIELDS = {"batch_size": 16, "fanouts": [4, 3], "hidden": 8, "device": "cpu", "threads": 2}


def planned(costs=None, **more):
    return plan_execution(job_of({**FIELDS, **more}), community_graph(), costs or CostModel(operator_profile()))


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
    assert job_of({**FIELDS, **fields_of(divided[0])}).first_layer == "divided"


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
    with refused("missing-data cuda --machine h200"):
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
        plan_execution(job_of({**FIELDS, "fanouts": [2, 2]}), typed_graph(), CostModel(operator_profile()))


@pytest.fixture
def given(tmp_path):
    """A graph folder and a profile of operators, as flags of the command."""
    write_graph(community_graph(), tmp_path / "graph")
    write_profile(gpu_profile(), tmp_path / "machine.json")
    flags = ["--graph", tmp_path / "graph", "--batch-size", "16", "--fanouts", "4,3", "--hidden", "8"]
    return ["plan", "--machine", tmp_path / "machine.json", *flags]


def test_the_command_prints_the_plan(given, monkeypatch, capsys):
    found = answer(monkeypatch, capsys, *given)
    assert found["chosen"] == found["alternatives"][0]
    assert found["chosen"]["epoch_s"] == pytest.approx(found["chosen"]["batch_s"] * found["batches"])
    assert found["chosen"]["limit"] in found["chosen"]["use"]
    assert job_of(found["chosen"]["fields"]).first_layer == found["chosen"]["first_layer"]
    assert found["machine"]["gpu"] == "a made GPU"
    code, said, _ = command(monkeypatch, capsys, *given, "--device-memory", "1GB")
    assert code == 0
    assert "Chosen: device: " in said and "The limit is " in said


def test_flags_of_other_plans_are_refused(given, monkeypatch, capsys):
    said = refusal(monkeypatch, capsys, *given, "--flows", "fair")
    check_refusal(said.code, said, "unsupported-combination --flows --execution")
    said = refusal(monkeypatch, capsys, "plan", "--device-memory", "1GB")
    check_refusal(said.code, said, "unsupported-combination --device-memory --execution")
    said = refusal(monkeypatch, capsys, *given, "--profile", "machine.json")
    check_refusal(said.code, said, "unsupported-combination --profile --machine machine.json")
    said = refusal(monkeypatch, capsys, *given, "--execution", "--cluster", "2x1")
    check_refusal(said.code, said, "unsupported-combination --cluster --execution")


def test_machines_that_one_does_not_have_are_compared(given, tmp_path, monkeypatch, capsys):
    """A file beside names: each machine has its epoch, its memory, and whether its figures are estimates."""
    names = f"{tmp_path / 'machine.json'},arm-host,h200,l4"
    given = ["plan", "--machine", names, *given[3:]]
    found = {each["name"]: each for each in answer(monkeypatch, capsys, *given)["machines"]}
    assert list(found) == names.split(",")
    assert [each["estimated"] for each in found.values()] == [False, False, False, True]
    assert found["l4"]["ratios"]["bandwidth"] == pytest.approx(300 / 4800)
    assert found["l4"]["chosen"]["epoch_s"] > found["h200"]["chosen"]["epoch_s"] > 0
    assert found["arm-host"]["device_memory"] is None
    room = found["l4"]["device_memory"]
    assert 0 < room["taken"] < room["memory"] == 24e9 and room["features"] == "device"
    code, said, _ = command(monkeypatch, capsys, "plan", "--machine", "h200,l4", *given[3:])
    assert code == 0
    (line,) = (line for line in said.splitlines() if line.startswith(" l4 "))
    assert "estimated (0.062, 0.45, 0.5)" in line and "of 24 GB" in line
    assert "measured" in next(line for line in said.splitlines() if line.startswith(" h200 "))
    assert "ratios of memory bandwidth, float32 rate and link" in said


def test_a_gpu_without_room_leaves_the_host(given, monkeypatch, capsys):
    """A job that leaves the device open is computed by the host; one that asks for the GPU is refused."""
    given = ["plan", "--machine", "this,l4", *given[3:], "--device-memory", "2MB"]
    found = answer(monkeypatch, capsys, *given)["machines"][1]
    assert found["device_memory"]["taken"] is None and found["chosen"]["device"] == "cpu"
    code, said, _ = command(monkeypatch, capsys, *given)
    assert code == 0 and "does not fit" in said
    on_gpu = answer(monkeypatch, capsys, *given[:-2], "--device", "cuda")["machines"]
    assert "cuda" in on_gpu[0]["refused"] and on_gpu[1]["chosen"]["device"] == "cuda"


def test_machines_that_are_not_known_are_refused(given, monkeypatch, capsys):
    said = refusal(monkeypatch, capsys, "plan", "--machine", "h300", *given[3:])
    check_refusal(said.code, said, "unknown-name h300 this arm-host h200 l4 all --operators")
    said = refusal(monkeypatch, capsys, "plan", "--machine", ",", *given[3:])
    check_refusal(said.code, said, "invalid-value h200 all")
    said = refusal(monkeypatch, capsys, "plan", "--machine", "arm-host", *given[3:], "--device-memory", "24GB")
    check_refusal(said.code, said, "unsupported-combination --device-memory --machine h200")


def with_fits(profile, *fits):
    return profile.model_copy(update={"fits": [*profile.fits, *fits]})


def batch_fit(smallest, device="cpu", **rates):
    return FittedOperator(
        name="batch", device=device, rates=rates, ranges={"seconds": (smallest, 1.0)}, fitted=3, held_out=0,
        mean_error=0.0, p95_error=0.0,
    )  # fmt: skip


def test_a_batch_takes_what_runs_were_measured_to_take_beyond_operators():
    plain = {each.choice: each.predicted.seconds for each in planned().plan.alternatives}
    costs = CostModel(with_fits(operator_profile(), batch_fit(1e-9, simulated=2.0, batches=0.003)))
    found = planned(costs)
    for each in found.plan.alternatives:
        assert each.predicted.seconds == pytest.approx(2 * plain[each.choice] + 0.003)
    assert found.epoch_s == pytest.approx(found.kind.batches * found.plan.chosen.predicted.seconds)
    assert found.outside == ()


def test_a_prediction_outside_of_what_was_measured_is_said(given, tmp_path, monkeypatch, capsys):
    fits = [fit.model_copy(update={"ranges": {"in": (64.0, 128.0)}}) for fit in operator_profile().fits]
    profile = with_fits(operator_profile().model_copy(update={"fits": fits}), batch_fit(0.5, batches=0.1))
    found = planned(CostModel(profile)).outside
    assert {(each.operator, each.size) for each in found} == {("dense_weight_gradient", "in"), ("batch", "seconds")}
    assert all(each.value < each.smallest for each in found)
    write_profile(profile, tmp_path / "machine.json")
    shown = answer(monkeypatch, capsys, *given)
    assert {each["size"] for each in shown["outside"]} == {"in", "seconds"}
    _, said, _ = command(monkeypatch, capsys, *given)
    assert "A batch of 1e+02 ms is shorter than all that were measured (5e+02 ms and more)" in said
    write_profile(profile.model_copy(update={"fits": fits}), tmp_path / "machine.json")
    _, said, _ = command(monkeypatch, capsys, *given)
    assert "Outside of what was measured" in said and "(measured: 64 to 128)" in said


def test_batches_of_runs_are_fitted(monkeypatch):
    """What runs take beyond simulated operators is found again, from runs that are carried out as they were planned."""
    ran = list[Job]()

    def seconds(job, graph, batches):
        ran.append(job)
        return 0.004 + 0.001 * len(ran)

    monkeypatch.setattr(execution_plan, "_SCALES", {"small": 0.005, "large": 0.01})
    monkeypatch.setattr(execution_plan, "seconds_of_batch", seconds)
    (fit,) = fit_batches(CostModel(operator_profile()), "cpu")
    assert (fit.name, fit.device) == ("batch", "cpu") and fit.fitted + fit.held_out == len(ran) / 2
    assert {job.first_layer for job in ran} == {"gather", "aggregate"} and {job.model for job in ran} >= {"gat"}
    assert fit.ranges["seconds"] == (pytest.approx(0.005), pytest.approx(0.004 + 0.001 * (len(ran) - 1)))
    assert fit.rates


def test_a_batch_of_a_run_is_timed():
    job = job_of({**FIELDS, "timed_choices": []})
    assert 0 < seconds_of_batch(job, community_graph(), 8) < 10
