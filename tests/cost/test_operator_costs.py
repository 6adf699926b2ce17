"""The cost model: rates from measurements, errors on what was held out, predictions from given rates."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from operator_profiles import HERE, WITH_GPU, gpu_profile, operator_profile
from penstock.cost import model as operator_cache
from penstock.cost import operator_profile as profiles
from penstock.cost.fit import fit_and_compare, fit_rates, step_widths, training_step, undisturbed
from penstock.cost.model import (
    BlockSizes,
    CostModel,
    StepShape,
    calls_by_layer,
    data_sheets,
    known_machine,
    known_machines,
    machine_model,
    machine_names,
    machine_order_costs,
    predicted_layers,
    shipped_model,
    step_calls,
    step_seconds,
    step_work,
)
from penstock.cost.operators import OPERATORS
from penstock.cost.operators.entry import HELD_OUT, RUNGS, block_sizes, distinct_rows, made_graph, rung_of
from penstock.cost.profile import FittedOperator, Profile, processor_name, read_profile, this_machine, write_profile
from penstock.nn import build_model
from penstock.nn.layer_table import model_options
from penstock.nn.operator_costs import CHUNK, Processor, aggregate_work, in_chunks, order_costs_of, seconds_of
from penstock.sampling import Block
from refusals import refused

PROCESSOR = Processor(1e6, 32e6)


def test_rates_are_found_again():
    rng = np.random.default_rng(0)
    right = {"calls": 1e-5, "flops": 2e-11, "written": 3e-9}
    work = [{"calls": 1.0, "flops": 10 ** rng.uniform(4, 9), "written": 10 ** rng.uniform(2, 6)} for _ in range(10)]
    found = fit_rates(work, [seconds_of(right, each) for each in work])
    assert found == pytest.approx(right, rel=1e-6)


def test_rates_are_never_negative():
    work = [{"calls": 1.0, "rows": float(rows)} for rows in range(1, 11)]
    assert fit_rates(work, [20.0 - rows for rows in range(1, 11)])["calls"] > 0
    assert all(rate > 0 for rate in fit_rates(work, [20.0 - rows for rows in range(1, 11)]).values())


def test_what_is_held_out_is_not_fitted():
    work = [{"rows": float(rows)} for rows in range(1, 17)]
    held = [place in HELD_OUT for place in range(16)]
    seconds = [3.0 * each["rows"] * (2.0 if out else 1.0) for each, out in zip(work, held, strict=True)]
    fit = fit_and_compare("gather", "cpu", work, seconds, held)
    assert fit.rates == {"rows": pytest.approx(3.0)}
    assert (fit.fitted, fit.held_out) == (16 - len(HELD_OUT), len(HELD_OUT))
    assert (fit.mean_error, fit.p95_error) == (pytest.approx(0.5), pytest.approx(0.5))


def test_ten_rungs_are_fitted():
    assert RUNGS - len(HELD_OUT) == 10


def test_a_disturbed_run_does_not_count():
    assert undisturbed([1.0, 1.0, 9.0, 8.0, 7.0, 9.0, 9.0, 9.0]) == 1.0


def test_rows_outside_the_caches_are_counted_apart():
    sizes = {"src": 1000.0, "dst": 400.0, "edges": 5000.0, "width": 10.0, "src_distinct": 2600.0, "dst_passes": 1700.0}
    held = aggregate_work(sizes, Processor(1e9, 1e9))
    assert (held["written"], held["streamed"], held["rows"], held["passes"]) == (4000, 6000, 5000, 17000)
    assert held["rows_far"] == held["rows_memory"] == 0
    half = aggregate_work(sizes, Processor(10_000, 20_000))
    assert (half["rows_far"], half["rows_memory"]) == (1500, 1000)


def test_one_thread_has_all_of_a_small_kernel_and_a_share_of_a_large_one():
    two = Processor(1e9, 1e9, 2)
    small, large = in_chunks({"rows": 8.0}, CHUNK, two), in_chunks({"rows": 8.0}, 4 * CHUNK, two)
    assert (small["rows"], large["rows"]) == (8.0, 4.0)
    assert in_chunks({"rows": 9.0}, 3 * CHUNK, two)["rows"] == pytest.approx(6.0)


def test_sizes_of_a_block_tell_how_its_rows_are_read():
    """Two destinations of five and two sources; a source that is read twice is met once."""
    block = Block(np.array([0, 5, 7]), np.array([0, 1, 2, 3, 4, 0, 1], np.int32), 5)
    found = block_sizes(block)
    assert (found["src"], found["dst"], found["edges"]) == (5, 2, 7)
    assert (found["src_distinct"], found["dst_distinct"]) == (5, 2)
    assert (found["dst_passes"], found["src_passes"]) == (4, 7)
    again = np.concatenate([np.zeros(4096, np.int64), np.zeros(10, np.int64)])
    assert distinct_rows(again, 3) == 2


@pytest.fixture(scope="module")
def rung():
    return rung_of(made_graph(60, 4), 16, (3, 2), 0, 8, 6)


OF_THE_HOST = ["host_gather", "host_aggregate", "pinned_read"]
"""What is measured for a GPU and runs without one."""


@pytest.mark.parametrize(
    "name",
    [name for name, entry in OPERATORS.items() if entry.prepare and ("cpu" in entry.devices or name in OF_THE_HOST)],
)
def test_every_operator_runs_and_its_work_is_counted(rung, name, monkeypatch):
    monkeypatch.setattr("penstock.cost.operators.rows._BYTES", 1 << 20)
    entry = OPERATORS[name]
    run = entry.prepare(rung, torch.device("cpu"))
    run()
    run()
    amounts = entry.work(entry.sizes(rung), PROCESSOR)
    assert all(np.isfinite(amount) and amount >= 0 for amount in amounts.values())
    assert any(amount > 0 for amount in amounts.values())


@pytest.mark.parametrize(("name", "read"), [("host_gather", "rows"), ("host_aggregate", "edges")])
def test_what_the_host_does_for_a_gpu_is_measured_on_many_rows(rung, name, read):
    sizes = OPERATORS[name].sizes(rung)
    assert 1 << 17 <= sizes[read] < 1 << 18 and sizes["width"] == rung.width
    if name == "host_aggregate":
        assert sizes["src"] / sizes["dst"] == rung.block.num_src / rung.block.num_dst


def test_the_ladder_is_the_same_each_time(rung):
    again = rung_of(made_graph(60, 4), 16, (3, 2), 0, 8, 6)
    assert np.array_equal(again.block.indices, rung.block.indices)


def test_measurements_make_a_fit(rung, monkeypatch):
    """With a clock that tells what the work is: nothing depends on how long anything takes."""
    rungs = [
        rung_of(made_graph(60, 4), seeds, (3,), 0, width, 6) for seeds in (4, 8, 16, 32) for width in (4, 8, 16, 32)
    ]
    entry, right = OPERATORS["dense"], {"flops": 2e-9, "calls": 1e-5}
    turns = iter(rungs)

    def clock(run, device):
        spent = seconds_of(right, entry.work(entry.sizes(next(turns)), PROCESSOR))
        return spent, [spent] * 5

    monkeypatch.setattr(profiles, "seconds_of_runs", clock)
    points, fit = profiles.measure_operator(entry, rungs, [place in HELD_OUT for place in range(16)], "cpu", HERE)
    assert len(points) == 16
    assert {name: fit.rates[name] for name in right} == pytest.approx(right, rel=1e-5)
    assert (fit.fitted, fit.held_out) == (10, 6)
    assert fit.mean_error < 1e-6


def test_drawing_on_a_gpu_is_fitted_to_batches_that_it_can_draw(monkeypatch):
    entry, rungs = OPERATORS["sample"], [rung_of(made_graph(60, 4), 8, fanouts, 0, 8, 6) for fanouts in ((3, 2), (-1,))]
    prepared = []
    monkeypatch.setattr(profiles, "seconds_of_runs", lambda run, device: (1.0, [1.0] * 5))
    drawn = replace(entry, prepare=lambda rung, device: prepared.append(rung))
    _, fit = profiles.measure_operator(drawn, rungs * 4, [False] * 6 + [True] * 2, "cuda", WITH_GPU)
    assert {rung.fanouts for rung in prepared} == {(3, 2)}
    assert (fit.device, fit.fitted, fit.held_out) == ("cuda", 3, 1)
    _, fit = profiles.measure_operator(drawn, rungs * 4, [False] * 6 + [True] * 2, "cpu", WITH_GPU)
    assert (fit.fitted, fit.held_out) == (6, 2)


def test_seconds_of_an_operator():
    model = CostModel(operator_profile(rate=2.0))
    assert model.seconds("loss", {"rows": 3, "classes": 4}) == 2 * (1 + 3 + 12)
    with refused("unknown-name matmul dense"):
        model.seconds("matmul", {})
    with refused("missing-data dense cuda penstock"):
        model.seconds("dense", {"rows": 1, "in": 1, "out": 1}, "cuda")
    with refused("missing-data penstock profile --operators"):
        CostModel(Profile(operators=[]))


BLOCKS, WIDTHS = [BlockSizes(50, 20, 90), BlockSizes(20, 5, 30)], [(16, 8), (8, 3)]


@pytest.mark.parametrize("layer", predicted_layers())
def test_seconds_of_a_step_are_those_of_its_operators(layer):
    model = CostModel(operator_profile(rate=1e-6))
    shape = StepShape(layer, BLOCKS, WIDTHS)
    calls = step_calls(model, shape)
    assert step_seconds(model, shape) == pytest.approx(sum(model.seconds(*call) for call in calls))
    names = [call.operator for call in calls]
    # GIN has a network of its own in every layer.
    inside = len(BLOCKS) if layer == "gin" else 0
    assert names.count("relu_drop") == names.count("relu_drop_backward") == 1 + inside
    assert names.count("loss") == names.count("optimiser") == 1
    # The features need no gradient: no list is read backwards for them where it is summed up first.
    given = step_calls(model, replace(shape, order="aggregate"))
    backward = [call.operator for call in given].count("aggregate_backward")
    assert backward == (0 if layer == "gat" else 1)


@pytest.mark.parametrize("layer", predicted_layers())
def test_weights_of_a_step_are_those_of_its_model(layer):
    options = model_options(model=layer, layers=2, hidden=8, heads=2)
    net = build_model(options, 16, 3)
    (updated,) = (
        call.sizes
        for call in step_calls(CostModel(operator_profile()), StepShape(layer, BLOCKS, WIDTHS, heads=2))
        if call.operator == "optimiser"
    )
    assert updated["numbers"] == sum(each.numel() for each in net.parameters())
    assert updated["tensors"] == len(list(net.parameters()))


def test_a_step_takes_more_than_its_operators():
    """As much more as was measured; nothing where steps were not."""
    made = operator_profile(rate=1e-6)
    step = FittedOperator(
        name="step", rates={"operators": 1.2, "calls": 1.0}, fitted=10, held_out=6, mean_error=0, p95_error=0
    )
    shape = StepShape("gcn", BLOCKS, WIDTHS)
    alone = step_work(CostModel(made), shape)
    measured = CostModel(made.model_copy(update={"fits": [*made.fits, step]}))
    assert step_seconds(measured, shape) == pytest.approx(1.2 * alone["operators"] + alone["calls"])


@pytest.mark.parametrize("layer", predicted_layers())
def test_steps_that_are_measured_run(layer):
    rung = rung_of(made_graph(60, 4), 8, (3, 2), 0, 8, 6)
    run = training_step(CostModel(operator_profile()), layer, rung.batch.blocks, 8, 6, torch.device("cpu"))
    assert run() != run()
    assert step_widths(layer, 8, 6, 2) == [(8, 64), (64, 6)]


def test_orders_of_a_step_can_be_given():
    model = CostModel(operator_profile())

    def widths(order):
        calls = step_calls(model, StepShape("gcn", BLOCKS, WIDTHS, order=order))
        return [call.sizes["width"] for call in calls if call.operator == "aggregate"]

    assert widths("aggregate") == [16, 8]
    assert widths(["transform", "aggregate"]) == [8, 8]
    assert widths("transform") == [8, 3]


def test_steps_that_are_not_known_are_refused():
    model = CostModel(operator_profile())
    with refused("unknown-name gine sage"):
        step_seconds(model, StepShape("gine", BLOCKS, WIDTHS))
    with refused("shape-mismatch 2 1"):
        step_seconds(model, StepShape("gcn", BLOCKS, WIDTHS[:1]))


def test_a_changed_machine_has_no_profile_yet(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    path = operator_cache.cached_path(HERE)
    path.parent.mkdir(parents=True)
    write_profile(operator_profile(), path)
    assert operator_cache.cached_profile(HERE) == operator_profile()
    for change in ({"cores": 3}, {"driver": "570"}, {"gpu": "G"}, {"libraries": {"torch": "2"}}):
        assert operator_cache.cached_profile(HERE.model_copy(update=change)) is None
    path.write_text(path.read_text().replace('"version": 3', '"version": 2'))
    assert operator_cache.cached_profile(HERE) is None


def test_a_profile_of_an_earlier_release_is_completed(tmp_path, monkeypatch):
    """What it has is kept, and only what it lacks is measured."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    earlier, machine = operator_profile(rate=3.0, machine=this_machine()), this_machine()
    lacking = {"loss", "gather"}
    known = earlier.model_copy(update={"fits": [fit for fit in earlier.fits if fit.name not in lacking]})
    path = operator_cache.cached_path(machine)
    path.parent.mkdir(parents=True)
    write_profile(known, path)
    monkeypatch.setattr(
        profiles, "made_ladder", lambda progress: [rung_of(made_graph(60, 4), 8, (3,), 0, 8, 6)] * RUNGS
    )
    monkeypatch.setattr(profiles, "seconds_of_runs", lambda run, device: (1.0, [1.0] * 5))
    found = profiles.machine_profile()
    assert found.fits[: len(known.fits)] == known.fits
    assert {fit.name for fit in found.fits[len(known.fits) :]} == lacking
    assert {point.name for point in found.operators} == lacking
    kept = read_profile(path).fits
    assert [fit.name for fit in kept] == [fit.name for fit in found.fits]
    monkeypatch.setattr(profiles, "made_ladder", None)
    assert profiles.machine_profile().fits == kept


@pytest.mark.parametrize(
    ("described", "name"),
    [
        ("model name\t: AMD EPYC 9654\nCPU part: 7\n", "AMD EPYC 9654"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "ARM Neoverse-N1"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "ARM Neoverse-V2"),
        ("CPU implementer\t: 0xc0\nCPU part\t: 0xac3\n", "Ampere One"),
    ],
)
def test_a_processor_is_named_as_people_name_it(tmp_path, described, name):
    (tmp_path / "cpuinfo").write_text(described)
    assert processor_name(tmp_path / "cpuinfo") == name


def test_a_processor_of_an_unknown_part_tells_its_numbers(tmp_path):
    (tmp_path / "cpuinfo").write_text("CPU implementer\t: 0x41\nCPU part\t: 0xfff\n")
    assert processor_name(tmp_path / "cpuinfo").endswith(" (ARM, part 0xfff)")
    (tmp_path / "cpuinfo").write_text("CPU implementer\t: 0x99\nCPU part\t: 0xfff\n")
    assert processor_name(tmp_path / "cpuinfo").endswith(" (implementer 0x99, part 0xfff)")
    assert processor_name(tmp_path / "none")


def test_the_model_of_this_machine_or_the_one_that_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    assert machine_model() is shipped_model()
    named = tmp_path / "mine.json"
    write_profile(operator_profile(rate=3.0), named)
    monkeypatch.setenv("PENSTOCK_OPERATORS", str(named))
    assert machine_model().seconds("loss", {"rows": 0, "classes": 0}) == 3.0
    found = machine_order_costs()
    assert found["cpu"] == order_costs_of(read_profile(named).model_dump(mode="json"))["cpu"]
    assert "H200" in found["cuda"].measured_on
    monkeypatch.delenv("PENSTOCK_OPERATORS")
    assert machine_model() is shipped_model()
    machine = this_machine()
    path = operator_cache.cached_path(machine)
    path.parent.mkdir(parents=True)
    write_profile(operator_profile(rate=5.0, machine=machine), path)
    assert machine_model().seconds("loss", {"rows": 0, "classes": 0}) == 5.0


def test_what_is_kept_of_constant_inputs_is_not_computed_again():
    """The first layer's lists are read once, or its sparse inputs read the weight as a list reads its neighbours."""
    model = CostModel(operator_profile())
    blocks = [BlockSizes(400, 300, 2000), BlockSizes(300, 100, 900)]
    shape = StepShape("gcn", blocks, [(512, 32), (32, 4)])

    def first_layer(**kept):
        return [(call.operator, call.sizes) for call in calls_by_layer(model, replace(shape, **kept)).layers[0]]

    names = [name for name, _ in first_layer(first_kept=True)]
    assert "dense" in names and not {"aggregate", "aggregate_backward", "transpose"} & set(names)
    assert dict(first_layer(first_kept=True))["dense"] == {"rows": 300, "in": 512, "out": 32}
    sparse = first_layer(first_kept=True, first_density=0.01)
    assert ("aggregate", {"src": 512, "dst": 400, "edges": pytest.approx(0.01 * 400 * 512), "width": 32}) in sparse
    assert not {"dense", "dense_weight_gradient"} & {name for name, _ in sparse}
    later = [calls_by_layer(model, replace(shape, first_kept=kept)).layers[1] for kept in (False, True)]
    assert later[0] == later[1]


def test_shipped_machines_were_measured():
    """A host of each architecture and a GPU: errors on what was held out, ranges, and what batches of runs take."""
    for name, devices in {"arm-host": {"cpu"}, "x86-host": {"cpu"}, "h200": {"cpu", "cuda"}}.items():
        model = known_machine(name).model
        assert {fit.device for fit in model.profile.fits} == devices
        assert (model.machine.gpu is None) == ("cuda" not in devices)
        for device in devices:
            assert model.knows("batch", device)
            for operator, entry in OPERATORS.items():
                if device in entry.devices:
                    fit = model.fit(operator, device)
                    assert fit.ranges, (name, operator)
                    # Pinned reads follow from two runs.
                    assert operator == "pinned_read" or (fit.mean_error > 0 and fit.held_out), (name, operator)


def test_other_gpus_are_estimated_by_the_ratios_of_their_data_sheets():
    known, l4 = known_machine("h200"), known_machine("l4")
    sheet, measured = data_sheets()["l4"], data_sheets()["h200"]
    assert l4.estimated and not known.estimated
    assert l4.ratios == {
        "bandwidth": pytest.approx(sheet.bandwidth / measured.bandwidth),
        "rate": pytest.approx(sheet.rate / measured.rate),
        "link": pytest.approx(sheet.link / measured.link),
    }
    assert f"bandwidth {l4.ratios['bandwidth']:.2f}" in l4.basis and "h200" in l4.basis
    assert l4.device_memory == 24e9 and l4.model.machine.gpu == "NVIDIA L4"

    def factors(operator, device="cuda"):
        before, after = (each.model.fit(operator, device).rates for each in (known, l4))
        return {work: after[work] / before[work] for work in before}

    dense = factors("dense")
    assert dense.pop("calls") == pytest.approx(1) and dense.pop("flops") == pytest.approx(1 / l4.ratios["rate"])
    assert all(factor == pytest.approx(1 / l4.ratios["bandwidth"]) for factor in dense.values())
    assert factors("copy_up") == {"calls": pytest.approx(1), "bytes": pytest.approx(1 / l4.ratios["link"])}
    for operator, device in (("host_gather", "cuda"), ("sample", "cpu")):
        assert all(factor == pytest.approx(1) for factor in factors(operator, device).values())


def test_machines_are_listed_once():
    names = machine_names()
    assert names[0] == "this" and {"arm-host", "x86-host", "h200", "l4", "a100"} < set(names)
    assert [each.name for each in known_machines("l4, all,h200")] == ["l4", *(name for name in names if name != "l4")]
    assert all(sheet.source for sheet in data_sheets().values())
    with refused("file-not-found gone.json"):
        known_machines("gone.json")


def test_captured_operators_take_no_time_of_launching():
    """Neither a call, nor hops of a drawing device, nor an optimiser's tensors."""
    model = CostModel(gpu_profile())
    sizes = {"tensors": 4, "numbers": 100}
    assert model.seconds("optimiser", sizes, "cuda", launched=False) == pytest.approx(100 * 1e-11)
    drawn = dict.fromkeys(("rows", "rows_in_order", "drawn", "whole", "graph_edges", "graph_nodes"), 0.0)
    assert model.seconds("sample", {**drawn, "hops": 2}, "cuda", launched=False) == 0
    assert model.seconds("sample", {**drawn, "hops": 2}, "cuda") > 0


def test_ranges_of_what_was_measured_are_kept():
    rungs = [rung_of(made_graph(60, 4), 8, (3,), 0, width, 6) for width in (8, 16, 32)]
    _, fit = profiles.measure_operator(OPERATORS["gather"], rungs, [False, False, True], "cpu", HERE)
    assert fit.ranges["width"] == (8.0, 32.0)
    model = CostModel(operator_profile().model_copy(update={"fits": [fit]}))
    assert [each.size for each in model.outside("gather", {"width": 64.0})] == ["width"]
    (below,) = model.outside("gather", {"width": 4.0})
    assert (below.smallest, below.largest, below.factor) == (8.0, 32.0, 2.0)
    assert model.outside("gather", {"width": 8.0}) == []
