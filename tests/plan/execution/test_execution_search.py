"""Executions of a batch compared with made rates: what is fastest follows from what is slow."""

from dataclasses import replace

import pytest

from operator_profiles import HERE, gpu_profile, operator_profile
from penstock.cost.model import BlockSizes, CostModel, step_work
from penstock.plan.execution import BatchKind, ExecutionChoice, PipelineDepths, Space, mean_blocks, predict, search
from penstock.plan.execution.first_layer import (
    CORES,
    DOWN,
    GPU,
    UP,
    DivisionRates,
    balanced_share,
    batch_operators,
    predicted_rates,
    rows_along_paths,
    rows_read,
)
from penstock.plan.execution.search import PlannedWay, cheapest_orders, choices
from penstock.train.first_layer.ways import WAYS
from refusals import refused

KIND = BatchKind(
    layer="sage",
    blocks=(BlockSizes(20_000, 5_000, 20_000), BlockSizes(5_000, 1_000, 5_000)),
    widths=((128, 64), (64, 40)),
    sample={
        "hops": 2, "rows": 6_000, "rows_in_order": 0, "drawn": 20_000, "whole": 5_000, "vertices": 20_000,
        "graph_nodes": 1_000_000, "graph_edges": 20_000_000,
    },
    table_rows=1_000_000,
    batches=100,
    hit_rate=lambda rows: rows / 1_000_000,
)  # fmt: skip
ORDER = ("aggregate", "aggregate")
HOST = ExecutionChoice("cpu", "cpu", "host", "gather", ORDER)
ON_GPU = ExecutionChoice("cuda", "cuda", "device", "device", ORDER)
PLANNED = {
    way.name: PlannedWay(way.planned, way.on_host, way.on_both) for way in WAYS.values() if way.planned is not None
}
SPACE = Space(
    PLANNED,
    devices=("cpu", "cuda"),
    sampled_by=("cpu", "cuda"),
    features=(("host", 0), ("pinned", 0), ("pinned", 500_000), ("device", 0)),
    groups=(1, 8),
)


def seconds(model, choice, kind=KIND, **more):
    return predict(model, kind, choice, PLANNED[choice.first_layer].work, **more).seconds


def test_a_busy_host_takes_the_work_of_all_its_cores():
    """Nothing waits for anything but cores: a batch takes the core-seconds of its operators."""
    one = operator_profile(machine=HERE.model_copy(update={"cores": 1, "processors": {"cpu": (1e6, 1e8, 1)}}))
    model = CostModel(one)
    operators = batch_operators(model, KIND, HOST, PLANNED["gather"].work)
    assert seconds(model, HOST) == pytest.approx(operators.use(CORES), rel=1e-6)
    compute = sum(each.seconds for each in operators.compute)
    assert compute == pytest.approx(step_work(model, KIND.shape(ORDER))["operators"])
    assert predict(model, KIND, HOST, PLANNED["gather"].work).use == {CORES: pytest.approx(1.0, rel=1e-6)}


def test_drawing_that_takes_longest_is_done_by_more_threads():
    model = CostModel(operator_profile(rate=1e-12, sample=1e-6))
    drawn = model.seconds("sample", KIND.sample)
    assert seconds(model, HOST) == pytest.approx(drawn, rel=1e-3)
    assert seconds(model, replace(HOST, sample_threads=2)) == pytest.approx(drawn / 2, rel=5e-2)
    assert seconds(model, replace(HOST, groups=8)) == pytest.approx(drawn / 2, rel=5e-2)


def test_a_group_is_trained_on_when_all_of_it_is_drawn():
    """By a GPU, which takes as long for a batch as a thread of the host: half of the time one of them waits."""
    model = CostModel(gpu_profile(rate=1e-15, gpu=1e-15, sample=1e-6, of_gpu={"optimiser": 1e-6}))
    drawn = model.seconds("sample", KIND.sample)
    learned = model.seconds("optimiser", {"tensors": 6, "numbers": 21_608}, "cuda")
    alone = ExecutionChoice("cuda", "cpu", "device", "device", ORDER)
    assert seconds(model, alone) == pytest.approx(max(drawn, learned), rel=1e-2)
    grouped = seconds(model, replace(alone, groups=8))
    assert max(drawn / 2, learned) < grouped <= (drawn / 2 + learned) * 1.01


def test_a_pipeline_without_room_waits():
    model = CostModel(operator_profile(rate=1e-9, sample=1e-7, gather=1e-8))
    tight, wide = (seconds(model, HOST, depths=PipelineDepths(*[room] * 3)) for room in (1, 4))
    assert wide <= tight * 1.001


def test_rows_over_the_bus_limit_what_reads_them():
    model = CostModel(gpu_profile(of_gpu={"pinned_read": 1e-9}))
    pinned, cached = (replace(ON_GPU, features="pinned", cache_rows=rows) for rows in (0, 500_000))
    found = [predict(model, KIND, choice, PLANNED["device"].work) for choice in (pinned, cached, ON_GPU)]
    assert [each.limit for each in found] == [UP, UP, GPU]
    assert found[1].seconds == pytest.approx(found[0].seconds / 2, rel=0.05)
    assert found[2].seconds < found[1].seconds


def test_a_fast_gpu_with_room_keeps_everything():
    plan = search(CostModel(gpu_profile(sample=1e-5, of_gpu={"pinned_read": 1e-9, "copy_up": 1e-9})), KIND, SPACE)
    assert (plan.chosen.choice.device, plan.chosen.choice.features, plan.chosen.choice.sampled_by) == (
        "cuda", "device", "cuda",
    )  # fmt: skip
    assert plan.chosen.choice.captured
    rest = [each.predicted.seconds for each in plan.alternatives[1:]]
    assert rest == sorted(rest) and len(rest) > 20
    assert plan.unknown == []


@pytest.mark.parametrize(("widths", "best"), [((128, 64), "aggregate"), ((602, 8), "transform")])
def test_a_slow_bus_leaves_work_to_the_host(widths, best):
    """Features on the host alone: means are fewer than rows, and rows of a narrowing layer are narrower still."""
    kind = replace(KIND, widths=(widths, (widths[1], 40)))
    model = CostModel(gpu_profile(rate=1e-13, of_gpu={"copy_up": 1e-9, "copy_down": 1e-9}))
    space = replace(SPACE, devices=("cuda",), features=(("host", 0),))
    found = search(model, kind, space).chosen
    assert found.choice.first_layer == best
    assert found.predicted.limit in (UP, DOWN)


def test_layers_have_their_cheapest_orders():
    slow_lists = CostModel(operator_profile(rate=1e-12, aggregate=1e-7, aggregate_backward=1e-7))
    narrowing = replace(KIND, widths=((600, 8), (8, 40)))
    assert cheapest_orders(slow_lists, narrowing, "cpu") == ("transform", "aggregate")
    plan = search(slow_lists, narrowing, Space({"gather": PLANNED["gather"]}))
    assert plan.chosen.choice.order == ("transform", "aggregate")
    attention = replace(KIND, layer="gat", has_orders=False)
    assert len(search(slow_lists, attention, Space({"gather": PLANNED["gather"]})).alternatives) == 1


def test_what_was_not_measured_is_said():
    made = gpu_profile()
    lacking = made.model_copy(
        update={"fits": [each for each in made.fits if (each.name, each.device) != ("sample", "cuda")]}
    )
    plan = search(CostModel(lacking), KIND, SPACE)
    assert {each.choice.sampled_by for each in plan.alternatives} == {"cpu"}
    (said,) = plan.unknown
    assert "sample was not measured on cuda" in said
    with refused("missing-data sample cuda"):
        search(CostModel(lacking), KIND, replace(SPACE, sampled_by=("cuda",), devices=("cuda",)))


def test_choices_that_are_as_fast_are_decided_by_their_order():
    model = CostModel(operator_profile())
    assert search(model, KIND, Space(PLANNED, sample_threads=(1, 2), groups=(1, 8))).chosen.choice.sample_threads == 1


def test_sizes_are_means():
    one, other = BlockSizes(10, 4, 20, 9.0, None), BlockSizes(20, 6, 30, 11.0, 3.0)
    assert mean_blocks([[one], [other]]) == (BlockSizes(15, 5, 25, 10.0, None),)


def test_small_kernels_keep_one_core_busy():
    model = CostModel(operator_profile())
    assert model.cores("relu_drop", {"rows": 10, "width": 8}) == 1.0
    assert model.cores("relu_drop", {"rows": 1_000_000, "width": 8}) == pytest.approx(2.0, rel=0.1)
    assert (model.cores("sample", {}), model.cores("dense", {})) == (1.0, 2.0)


def test_rows_along_two_paths_come_sooner_than_along_either():
    """A host that gathers rows about as fast as the bus carries them, for steps that are captured."""
    model = CostModel(gpu_profile(rate=1e-12, of_gpu={"pinned_read": 1e-9, "host_gather": 3e-9, "copy_up": 1e-12}))
    pinned = ExecutionChoice("cuda", "cuda", "pinned", "device", ORDER)
    alone, gathered = seconds(model, pinned), seconds(model, replace(pinned, features="host", first_layer="gather"))
    both = predict(model, KIND, pinned, rows_along_paths).seconds
    assert both < 0.8 * min(alone, gathered)
    half = replace(pinned, cache_rows=500_000)
    assert predict(model, KIND, half, rows_along_paths).seconds < both
    operators = batch_operators(model, KIND, pinned, rows_along_paths)
    assert [each.name for each in operators.gather] == ["host_gather"]
    assert operators.gather[0].seconds == pytest.approx(operators.transfer[-1].seconds, rel=0.05)


def test_slots_are_filled_by_all_threads_of_the_host():
    model = CostModel(gpu_profile())
    host = ExecutionChoice("cuda", "cuda", "host", "aggregate", ORDER)
    filled = batch_operators(model, KIND, host, PLANNED["aggregate"].work).gather
    assert [(each.name, each.lane.cores) for each in filled] == [("host_aggregate", 2.0), ("host_gather", 2.0)]
    launched = batch_operators(model, KIND, replace(host, launched=True), PLANNED["aggregate"].work).gather
    assert [each.name for each in launched] == ["aggregate_table", "gather"]


def test_a_division_ends_together_and_before_either_side_alone():
    """A host that adds up rows about as fast as the bus carries them: half of the batch each."""
    model = CostModel(gpu_profile(rate=1e-12, of_gpu={"host_aggregate": 3e-9, "pinned_read": 1e-9}))
    ways = {name: PLANNED[name] for name in ("device", "divided")}
    space = replace(SPACE, ways=ways, devices=("cuda",), sampled_by=("cuda",), features=(("pinned", 0),), groups=(1,))
    found = {each.choice.first_layer: each.predicted for each in search(model, KIND, space).alternatives}
    assert found["divided"].seconds < 0.8 * found["device"].seconds
    share = balanced_share(KIND.blocks[0], predicted_rates(model, KIND.blocks[0], KIND.width, KIND.table_rows))
    assert 0.1 < share < 0.9
    host = ExecutionChoice("cuda", "cuda", "host", "divided", ORDER)
    assert host not in list(choices(model, KIND, replace(space, features=(("host", 0), ("device", 0)))))


def test_shares_of_sides_that_are_fast_or_slow():
    block = BlockSizes(src=100, dst=20, edges=200)
    assert balanced_share(block, DivisionRates(1.0, 0.0)) == 0.0
    assert balanced_share(block, DivisionRates(0.0, 1.0)) == 1.0
    share = balanced_share(block, DivisionRates(1.0, 1.0))
    assert share * 200 == pytest.approx(rows_read(block, share))
    assert predicted_rates(CostModel(operator_profile()), block, 8, 100) is None
