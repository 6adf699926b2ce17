"""Training on the whole graph as tasks and flows: what waits for what, and what that predicts."""

import numpy as np
import pytest

from penstock import Graph
from penstock.hardware.cluster import ClusterDocument, Machine
from penstock.plan.comparison import Comparison
from penstock.plan.document import read_plan, write_plan
from penstock.plan.placement import Budget
from penstock.plan.planner import PlanChoices, comparison_of, make_plan, replay
from penstock.plan.workloads import WORKLOADS, PlannedRun, workload_of
from penstock.plan.workloads.whole_section import layer_costs
from penstock.progress import Progress
from penstock.train.job import job_of
from refusals import refused
from training_graphs import community_graph
from whole_profiles import EDGE, ROW, whole_profile


def cluster_of(machines: int, nic_gbps: float = 1.0, **fields) -> ClusterDocument:
    return ClusterDocument(
        machines=[Machine(name=f"m{number}", nic_gbps=nic_gbps, cores=4) for number in range(machines)], **fields
    )


def planned_run(machines: int = 3, nic_gbps: float = 1.0, profile=None, cluster=None, **fields) -> PlannedRun:
    graph = community_graph()
    job = job_of({"graph": "g", "sampler": "whole", "layers": 2, **fields}, "The test")
    return PlannedRun(
        cluster or cluster_of(machines, nic_gbps), job, profile or whole_profile(), open_graph=lambda: graph
    )


def compared(run: PlannedRun) -> Comparison:
    section = WORKLOADS["whole"].set_up(run)
    return comparison_of(run.cluster, run.profile, {"mode": "whole", **section.model_dump(mode="json")}, 0)


def epoch(run: PlannedRun) -> float:
    found = compared(run)
    (trial,) = found.try_all(["spread"], ["hermod"], Budget(1), Progress())
    return trial.iteration_s


def test_the_mode_is_that_of_the_sampler() -> None:
    assert workload_of("whole").mode == "whole"
    assert workload_of("neighbour").mode == "mini-batch"


def test_costs_are_fitted_exactly_where_they_are_lines() -> None:
    for cost in layer_costs(whole_profile(), "cpu"):
        assert cost.forward.seconds(123, 4567) == pytest.approx(123 * ROW + 4567 * EDGE)
        assert cost.backward.seconds(123, 4567) == pytest.approx(2 * (123 * ROW + 4567 * EDGE))
        assert cost.forward.seconds(0, 0) == 0


def test_a_profile_of_mini_batches_is_refused_in_words() -> None:
    run = planned_run(profile=whole_profile(operators=[]))
    with refused("missing-data forward 0 penstock profile"):
        WORKLOADS["whole"].set_up(run)


@pytest.mark.parametrize("exchange", ["bins", "layer", "boundary", "replicate"])
@pytest.mark.parametrize("scope", ["all", "reached"])
def test_one_worker_takes_what_its_bins_take(exchange: str, scope: str) -> None:
    run = planned_run(1, exchange=exchange, scope=scope, bins=3)
    graph: Graph = run.open_graph()
    section = WORKLOADS["whole"].set_up(run)
    rows = sum(sum(map(sum, layer.rows)) for layer in section.layers)
    edges = sum(sum(map(sum, layer.edges)) for layer in section.layers)
    if scope == "all":
        assert (rows, edges) == (2 * graph.num_nodes, 2 * graph.num_edges)
    assert epoch(run) == pytest.approx(3 * (rows * ROW + edges * EDGE))


def test_rows_that_travel_are_those_that_parts_read() -> None:
    run = planned_run(scope="all", model="gat")
    found = compared(run)
    section = WORKLOADS["whole"].set_up(run)
    rows = np.array(section.inputs).sum()
    load = found.load
    sent = {kind: load.flow_bytes[np.array(load.flow_kinds) == kind].sum() for kind in set(load.flow_kinds)}
    # Every layer reads the same rows where all vertices are computed, and gradients go back the same way.
    assert sent["layer rows"] == sent["layer gradients"] == pytest.approx(rows * 16 * 4)
    summed = compared(planned_run(scope="all", model="gcn")).load
    fewer = [summed.flow_bytes[np.array(summed.flow_kinds) == f"layer {what}"].sum() for what in ("rows", "gradients")]
    assert fewer[0] == fewer[1] < sent["layer rows"]
    share = compared(planned_run(scope="all", exchange="boundary", boundary_share=0.25)).load
    assert share.flow_bytes[np.array(share.flow_kinds) == "layer rows"].sum() == pytest.approx(rows * 16)


def test_a_layer_is_one_coflow_in_each_direction() -> None:
    load = compared(planned_run(scope="all", bins=4)).load
    kinds = np.array(load.flow_kinds)
    for kind in ("layer rows", "layer gradients"):
        assert len(set(load.coflows[kinds == kind].tolist())) == 1
    assert not set(load.coflows[kinds == "layer rows"]) & set(load.coflows[kinds == "layer gradients"])


@pytest.mark.parametrize("nic_gbps", [0.01, 0.1, 1.0])
def test_overlap_never_costs_and_reaches_the_bound_of_its_parts(nic_gbps: float) -> None:
    fields = {"scope": "all", "bins": 6, "nic_gbps": nic_gbps}
    seconds = {each: epoch(planned_run(pipeline=each, **fields)) for each in ("none", "intra", "inter", "both")}
    assert epoch(planned_run(exchange="layer", **fields)) == pytest.approx(seconds["none"])
    assert seconds["both"] <= min(seconds["intra"], seconds["inter"]) * 1.02
    assert max(seconds["intra"], seconds["inter"]) <= seconds["none"] * 1.01
    assert seconds["both"] < 0.98 * seconds["none"]


def test_rows_are_computed_again_where_links_are_slow() -> None:
    slow = WORKLOADS["whole"].set_up(planned_run(nic_gbps=1e-4, exchange="replicate", scope="all"))
    assert np.array(slow.layers[0].sent).sum() == 0 and np.array(slow.layers[0].again)[:, 0].sum() > 0
    fast = WORKLOADS["whole"].set_up(planned_run(nic_gbps=100, exchange="replicate", scope="all"))
    assert np.array(fast.layers[0].sent).sum() > 0 and np.array(fast.layers[0].again).sum() == 0
    fields = {"nic_gbps": 0.005, "scope": "all"}
    assert epoch(planned_run(exchange="replicate", **fields)) < epoch(planned_run(exchange="bins", **fields))


@pytest.mark.parametrize("reduce", [{}, {"reduce": "servers", "servers": 2}])
def test_gradients_are_summed_while_earlier_layers_run(reduce) -> None:
    operators = whole_profile().model_dump()["operators"] + [{"name": "sum", "seconds": {"mean": 0.001}}]
    profile = whole_profile(gradients=1e6, operators=operators)
    run = planned_run(profile=profile, cluster=cluster_of(3, **reduce), scope="all")
    alone = epoch(planned_run(profile=whole_profile(), cluster=cluster_of(3), scope="all"))
    assert alone < epoch(run) < alone + 2 * 2 * 1e6 / 1.25e8


def test_a_machine_without_workers_is_refused() -> None:
    machines = [Machine(name="a", nic_gbps=1), Machine(name="b", nic_gbps=1, workers=0)]
    with refused("option-missing Machine b workers"):
        WORKLOADS["whole"].set_up(planned_run(cluster=ClusterDocument(machines=machines)))


def test_a_plan_is_written_read_and_replayed(tmp_path) -> None:
    machines = [Machine(name="a", nic_gbps=1, workers=2, cores=8), Machine(name="b", nic_gbps=1, cores=8)]
    run = planned_run(cluster=ClusterDocument(machines=machines), bins=3)
    plan = make_plan(run, PlanChoices(None, None, Budget(10)), Progress())
    assert plan.execution["mode"] == "whole" and plan.execution["bins"] == 3 and plan.execution["exchange"] == "bins"
    assert plan.machine_of() == {
        "store-a": "a", "store-b": "b", "worker-0": "a", "worker-1": "a", "worker-2": "b"
    }  # fmt: skip
    assert {each.kind for each in plan.traffic} == {"layer rows", "layer gradients", "ring"}
    assert 0 < plan.predicted.placement_bound_s <= plan.predicted.iteration_s
    assert plan.predicted.memory_gb["a"] > plan.predicted.memory_gb["b"] > 1
    assert "comput" in plan.bottleneck or "link" in plan.bottleneck
    write_plan(plan, tmp_path / "plan.json")
    again = replay(read_plan(tmp_path / "plan.json"), plan.flows)
    assert again.pace.iteration_s == plan.predicted.iteration_s
    assert any("bin 2" in name for name in again.scenario.load.task_names)


def test_bins_are_chosen_by_predicted_seconds() -> None:
    plan = make_plan(planned_run(nic_gbps=0.1, scope="all"), PlanChoices("spread", "hermod", Budget(1)), Progress())
    tried = {bins: epoch(planned_run(nic_gbps=0.1, scope="all", bins=bins)) for bins in (1, 2, 4, 8, 16)}
    assert plan.job["bins"] == plan.execution["bins"] > 1
    assert min(tried.values()) <= tried[plan.execution["bins"]] < 1.05 * min(tried.values()) < tried[1]
    costly = whole_profile(fixed=0.01)
    assert WORKLOADS["whole"].set_up(planned_run(profile=costly, scope="all")).bins == 1


def with_messages(fixed: float, byte: float = 0.0):
    operators = whole_profile().model_dump()["operators"]
    for size in (1e3, 1e5, 1e6):
        operators.append({"name": "message", "sizes": {"bytes": size}, "seconds": {"mean": fixed + byte * size}})
    return whole_profile(operators=operators)


def test_handling_messages_takes_time_of_both_ends() -> None:
    """With one bin every worker sends two others rows and gradients, and receives as many of each."""
    fields = {"scope": "all", "bins": 1, "nic_gbps": 1e6}
    alone = epoch(planned_run(**fields))
    assert epoch(planned_run(profile=with_messages(0.004), **fields)) == pytest.approx(alone + 8 * 0.002, rel=1e-6)
    section = WORKLOADS["whole"].set_up(planned_run(**fields))
    sent = np.array(section.layers[0].sent).sum(axis=1) * 16 * 4
    # Rows go one way and gradients the other, so that a worker handles as many bytes of both.
    longest = ((sent.sum(0) + sent.sum(1)) * 1e-6).max()
    assert epoch(planned_run(profile=with_messages(0.0, 1e-6), **fields)) == pytest.approx(alone + longest, rel=0.05)


def test_fewer_bins_are_chosen_where_messages_cost_more() -> None:
    fields = {"nic_gbps": 0.1, "scope": "all"}
    chosen = [
        WORKLOADS["whole"].set_up(planned_run(profile=with_messages(each), **fields)).bins for each in (0.0, 2e-5, 1e-3)
    ]
    assert chosen == sorted(chosen, reverse=True) and chosen[0] > chosen[-1] == 1
