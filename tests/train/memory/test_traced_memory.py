"""Memory that is traced on tensors without numbers is the memory that real steps take."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from penstock.graph.folder import Graph
from penstock.pipeline.schedule import START, Schedule
from penstock.trace.allocations import AllocationEvent, Allocations, peak_of
from penstock.trace.allocators import DevicePeak, Heap, heap_peak
from penstock.traced import OTHER_THREADS
from penstock.train.batch_source import layers_of
from penstock.train.build import make_session
from penstock.train.job import make_job
from penstock.train.layerwise.host import Reach, frontiers
from penstock.train.run_context import run_context
from penstock.train.whole import traced
from penstock.train.whole.memory import Decision, bin_sizes, decided_sizes
from penstock.train.whole.plan import make_plan, vertices_by_level
from penstock.train.whole.steps import first_epoch
from training_graphs import community_graph, typed_graph

WHOLE = {"sampler": "whole", "epochs": 3, "hidden": 48, "layers": 2, "device": "cpu", "keep": "host"}
ALONE = {"threads": 1}
"""A second thread may hold an array a little longer."""


class Noted(Allocations):
    """Notes the memory of real tensors, and computes. What was `there` before is not noted, nor are views of it."""

    there = ()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self.there:
                self.note(tensor)
        return out


def session_of(graph, **fields):
    return make_session(make_job({**WHOLE, **fields}), graph)


def schedule_of(session):
    return Schedule(session.task.items, session.task.batch_size, session.job.seed, session.job.epochs)


def traced_events(monkeypatch, graph, bins, device="cpu", in_place=False, **fields):
    """The events of a traced step whose bins are as many as asked for."""
    session = session_of(graph, **fields)
    layers, events = layers_of(session.job), []
    planned = next(iter(first_epoch(schedule_of(session))))
    planned = planned._replace(seeds=np.sort(planned.seeds))
    messages = session.task.messages
    reach = Reach(messages, [list(messages.edges)] * layers)
    order, counts = vertices_by_level(reach, layers, session.task.readable(planned.seeds), False)
    place = "host" if device == "cpu" else "device"
    decision = Decision([bins] * layers, place, False, bins == 1, 0, in_place=in_place)
    sizes = decided_sizes(reach, layers, order, counts, decision)

    def kept(found, *_):
        events.extend(found)
        return peak_of(found)

    monkeypatch.setattr(traced, "heap_peak", kept)
    monkeypatch.setattr(traced, "device_peak", lambda found: DevicePeak(kept(found).bytes, 0, "", {}))
    session.inputs.device = torch.device(device)
    weights = dict(session.learned.named_parameters())
    traced.traced_step_memory(session, order, counts, sizes, decision, planned)
    for name, weight in session.learned.named_parameters():
        assert weight is weights[name] and not weight.is_meta
    return events


def of_steps(events):
    """What is allocated in steps: not the weights, and not the bins."""
    mine = {event.storage for event in events if event.bytes > 0 and event.moment.startswith("step")}
    return [event for event in events if event.storage in mine]


def real_events(graph, bins, in_place=False, **fields):
    job = make_job({**WHOLE, **ALONE, "bins": bins, **fields})
    with run_context(job):
        session, noted = make_session(job, graph), Noted()
        if in_place:
            session.execution.restore([asdict(Decision([bins] * job.layers, "host", False, False, 0, in_place=True))])
        with session.execution.steps(schedule_of(session), START, lambda _: 1, lambda *_: None) as steps, noted:
            noted.there = {
                each.untyped_storage().data_ptr()
                for each in tree_leaves(list(vars(session.execution._prepared[0]).values()))
                if in_place and isinstance(each, torch.Tensor)
            }
            for _ in steps:
                pass
    return noted.events


@pytest.mark.covering(1)
@pytest.mark.parametrize("bins", [1, 2])
@pytest.mark.parametrize(
    "fields",
    [
        {"model": "sage"},
        {"model": "sage", "aggregate": "max", "residual": True},
        {"model": "gcn", "norm": "layer", "jump": "cat"},
        {"model": "gat", "heads": 2, "attention_dropout": 0.2},
        {"model": "gatv2", "heads": 2},
        {"model": "gin", "norm": "batch", "input_dropout": 0.3},
    ],
    ids=str,
)
def test_a_traced_step_takes_what_a_real_one_takes(monkeypatch, fields, bins):
    graph = community_graph(count=3000)
    expected = peak_of(real_events(graph, bins, **fields)).bytes
    found = peak_of(of_steps(traced_events(monkeypatch, graph, bins, **fields))).bytes
    # Arrays that attention hands to torch count twice among the real ones.
    assert found == pytest.approx(expected, rel=0.15 if "heads" in fields else 0.03)


@pytest.mark.parametrize("fields", [{"model": "sage"}, {"model": "gcn"}, {"model": "gin", "norm": "layer"}], ids=str)
def test_a_traced_step_in_place_takes_what_a_real_one_takes(monkeypatch, fields):
    graph = community_graph(count=3000)
    expected = peak_of(real_events(graph, 3, in_place=True, **fields)).bytes
    found = peak_of(of_steps(traced_events(monkeypatch, graph, 3, in_place=True, **fields))).bytes
    assert found == pytest.approx(expected, rel=0.03)


def test_a_traced_device_holds_lists_features_and_levels_in_place(monkeypatch):
    """What waits from layer to layer, added up by hand: the bins of a step that has many take little beside it."""
    graph, how = community_graph(count=3000), {"layers": 3, "hidden": 64, "keep_type": "bfloat16", "evaluate_every": -1}
    found = peak_of(traced_events(monkeypatch, graph, 64, "cuda", in_place=True, **how)).bytes
    (nodes,), (edges,) = graph.nodes.values(), graph.edges.values()
    needed = [each["node"] for each in frontiers(graph, {"node": nodes.splits["train"]}, [list(graph.edges)] * 3)]
    lengths = [int(np.diff(edges.indptr)[rows].sum()) for rows in needed]
    lists = 4 * sum(lengths[1:]) + 16 * len(needed[1]) + 4 * len(needed[2])
    features = 4 * len(needed[0]) * nodes.fields["x"].shape[1]
    levels = 2 * 64 * len(needed[1]) + 2 * 2 * 64 * len(needed[2])
    workspace = 64 << 20
    assert 0 < found - workspace - lists - features - levels < 0.6 * (lists + features + levels)


@pytest.mark.parametrize(
    "model",
    [{"model": "rgcn"}, pytest.param({"model": "rgcn", "blocks": 4}, marks=pytest.mark.long), {"model": "hgt"}],
    ids=str,
)
def test_a_traced_step_of_a_heterogeneous_graph_takes_what_a_real_one_takes(monkeypatch, model):
    graph = typed_graph(count=1000)
    expected = peak_of(real_events(graph, 1, **model)).bytes
    found = peak_of(of_steps(traced_events(monkeypatch, graph, 1, **model))).bytes
    assert found == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("model", ["sage", "gcn", "gat", "gin"])
def test_a_step_on_a_device_is_traced_without_one(monkeypatch, model):
    """More hidden columns take more, and so do kept levels of more layers."""
    graph = community_graph(count=3000)
    small, wide, deep = (
        peak_of(traced_events(monkeypatch, graph, 1, "cuda", model=model, **more)).bytes
        for more in ({}, {"hidden": 96}, {"layers": 4})
    )
    assert small < wide < 2 * small
    assert small < deep


@pytest.mark.parametrize("without", [(), [("author", "writes", "paper")]], ids=["all types read", "authors not"])
def test_bins_are_counted_as_they_are_made(without):
    graph = typed_graph()
    graph = Graph(graph.nodes, {kind: edges for kind, edges in graph.edges.items() if kind not in without}, "papers")
    reach = Reach(graph, [list(graph.edges)] * 2)
    name = next(iter(graph.nodes))
    order, counts = vertices_by_level(reach, 2, {name: np.arange(20)}, False)
    for bins in (1, 3):
        plan = make_plan(reach, 2, order, counts, [bins] * 2)
        for sizes, layer in zip(bin_sizes(reach, 2, order, counts, bins), plan.bins, strict=True):
            assert len(sizes) == len(layer)
            for size, work in zip(sizes, layer, strict=True):
                assert size.rows == work.rows
                assert {kind: count for kind, count in size.edges.items() if count} == {
                    kind: part.num_edges for kind, part in work.block.relations.items()
                }
                given = {kind: len(ids) for kind, ids in work.names.items()}
                assert size.inputs == given


def test_memory_is_followed_until_nothing_refers_to_it():
    allocations = Allocations()
    with allocations:
        x = torch.zeros(10, 8)
        y = x.t() @ x
        del x
        z = torch.ones(3)
    assert y.is_meta and z.is_meta
    assert [event.bytes for event in allocations.events] == [320, 256, -320, 12]
    assert peak_of(allocations.events).bytes == 576
    assert peak_of(allocations.events, 512).bytes == 1024


def test_a_heap_fills_the_smallest_hole_and_joins_holes():
    heap = Heap()
    for name, size in enumerate([100, 50, 200, 50, 80]):
        heap.take(name, size)
    heap.give(0)
    heap.give(2)
    heap.take(5, 90)
    assert heap.extent == 480, "the hole of 100 holds it"
    heap.give(3)
    heap.take(6, 250)
    assert heap.extent == 480, "two holes beside each other are one"
    heap.take(7, 30)
    assert heap.extent == 510
    heap.give(7)
    heap.give(4)
    heap.take(8, 120)
    assert heap.extent == 520, "a hole at the end grows"


def test_holes_that_are_too_small_make_the_heap_grow():
    events = [
        AllocationEvent(0, 640, "a"),
        AllocationEvent(1, 64, "a"),
        AllocationEvent(0, -640, "a"),
        AllocationEvent(2, 1280, "b"),
    ]
    assert heap_peak(events) == (640 + 64 + 1280 + 64, "b"), "and a piece"
    assert peak_of(events) == (1344, "b")


def test_the_hole_of_an_aligned_array_does_not_hold_one_of_its_size():
    """The C library looks for room at any alignment, and a hole of the same size has none to spare."""
    hole = [AllocationEvent(0, 640, "a"), AllocationEvent(1, 64, "a"), AllocationEvent(0, -640, "a")]
    assert heap_peak([*hole, AllocationEvent(2, 512, "b")]).bytes == 704
    assert heap_peak([*hole, AllocationEvent(2, 640, "b")]).bytes == 704 + 640


def test_holes_are_parted_by_the_pieces_of_the_newest_arrays():
    """The C library keeps a few of the pieces that aligning cuts off, and merges the others with the holes."""
    heap = Heap(pieces=2)
    for name in range(3):
        heap.take(name, 2048)
    heap.give(0)
    heap.give(1)
    before = heap.extent
    heap.take(3, 4096)
    assert heap.extent > before, "a piece lies between the holes"
    before = heap.extent
    heap.take(4, 4096)
    assert heap.extent == before, "two newer ones are kept now"


def test_what_other_threads_hold_lies_beside_the_heap_of_the_thread_that_computes():
    """A hole that a step has left does not hold what another thread reads ahead."""
    hole = [AllocationEvent(0, 960, "a"), AllocationEvent(0, -960, "a")]
    read = AllocationEvent(1, 640, "b")
    assert heap_peak([*hole, read]) == (960, "a")
    assert heap_peak([*hole, read._replace(place=OTHER_THREADS)]) == (1600, "b")


def test_a_layer_that_asks_for_numbers_is_predicted_by_a_rule():
    class Asking(torch.nn.Module):
        """Scales rows by what they are."""

        def forward(self, x):
            return x / max(1.0, float(x.abs().max()))

    found = []
    for asks in (False, True):
        session = session_of(community_graph(), model="gcn", norm="layer")
        if asks:
            norms = [name for name, part in session.model.named_modules() if isinstance(part, torch.nn.LayerNorm)]
            parent, _, last = norms[0].rpartition(".")
            setattr(session.model.get_submodule(parent), last, Asking())
        with session.execution.steps(schedule_of(session), START, lambda _: 1, lambda *_: None) as steps:
            assert all(np.isfinite(step.loss) for done in steps for step in done)
        found.append(session.execution.facts())
    assert [facts["predicted_by"] for facts in found] == ["trace", "rule"]
    assert "predicted_reason" not in found[0] and "cannot be traced" in found[1]["predicted_reason"]
    assert min(facts["predicted_mb"] for facts in found) > 0
