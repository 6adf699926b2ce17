"""Training on rows that come along several paths: the bits of the pinned path, captured or not, by an interpreter."""

import functools
import importlib.util

import pytest
import torch

from device_steps import learned, placed_session, schedule_of
from interpreted_kernels import device_with_free_memory
from penstock.pipeline.schedule import START, Position
from penstock.train.job import job_of
from refusals import refused
from training_graphs import community_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself is tested in test_paths_on_gpu"),
]
FEW = {"fanouts": [3, 2], "hidden": 8, "batch_size": 16, "epochs": 2, "device": "cpu", "threads": 2}
PINNED = {"features": "pinned"}
EVERY = ["cache", "pinned", "gathered"]
"""All paths by name: `auto` leaves out gathering where the device has most of the rows, as it has of these graphs."""


@pytest.fixture(autouse=True)
def device_memory(monkeypatch):
    """A device with much free memory, chunks of a few rows, and few batches drawn ahead to count what is read."""
    device_with_free_memory(monkeypatch, lambda: 1 << 40)
    monkeypatch.setattr("penstock.train.device.placed_graph.DividedTable", small_chunks)


def small_chunks(table, paths):
    from penstock.store.device.divided import DividedTable

    return DividedTable(table, paths, 16 * 16)


def session_of(graph, **fields):
    return placed_session(graph, {**FEW, "placement": PINNED, **fields})


def assert_same_bits(a, b):
    assert [step.loss for step in a[0]] == [step.loss for step in b[0]]
    for name, values in a[1].items():
        assert torch.equal(values, b[1][name]), name


@pytest.fixture(scope="module")
def graph():
    return community_graph(120)


@pytest.fixture(scope="module")
def learned_along_pinned(graph):
    """What is learned from rows that take the pinned path alone, by whether steps are captured."""
    alone = {"feature_paths": ["pinned"], "placement": {**PINNED, "cache_rows": 0}, "epochs": 1}
    return functools.cache(lambda capture: learned(session_of(graph, **alone, capture=capture)))


@pytest.fixture(scope="module")
def learned_along_any(graph):
    """What is learned from rows that take any path."""
    return functools.cache(lambda: learned(session_of(graph, feature_paths=EVERY)))


@pytest.mark.covering(1)
@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize(
    ("paths", "placement"),
    [
        (["gathered"], PINNED),
        (["pinned", "gathered"], PINNED),
        (EVERY, {**PINNED, "cache_rows": 40}),
    ],
)
def test_losses_are_bit_equal_whatever_path_rows_took(graph, learned_along_pinned, capture, paths, placement):
    right = learned_along_pinned(capture)
    session = session_of(graph, feature_paths=paths, placement=placement, capture=capture, epochs=1)
    assert session.execution.placed.is_divided and session.execution.placed.is_captured == capture
    assert_same_bits(learned(session), right)
    came = session.execution.facts()["feature_paths"]
    assert all(set(each) == {"rows", "bytes", "seconds"} and each["rows"] for each in came.values())
    wanted = set(paths)
    assert set(came) == wanted and list(came) == [name for name in ("cache", "pinned", "gathered") if name in wanted]
    if "cache" in wanted:
        assert 0 < session.execution.facts()["placement"]["hit_rate"] < 1


def assert_nothing_is_under_way(session):
    paths = session.execution.placed.table.paths
    if paths.device.type == "cuda":
        torch.cuda.synchronize()
    paths.count_arrived()
    assert not paths._arriving


def test_a_batch_that_lacks_room_is_drawn_and_read_again(graph, learned_along_any, monkeypatch):
    from penstock.sampling.device.block import Room
    from penstock.train.device import decision

    right = learned_along_any()
    monkeypatch.setattr(decision, "presampled_room", lambda *_: Room((16, 40, 60), (48, 50)))
    tight = session_of(graph, feature_paths=EVERY)
    done = learned(tight)
    assert tight.execution.placed.room.rows[-1] > 60
    assert [step.position for step in done[0]] == [step.position for step in right[0]]
    for one, other in zip(done[0], right[0], strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-3)
    assert_nothing_is_under_way(tight)


def test_steps_that_end_in_the_middle_of_an_epoch_leave_nothing_under_way(graph, learned_along_any):
    session, whole = session_of(graph, feature_paths=EVERY), learned_along_any()
    first, _ = learned(session, steps=3)
    rest = learned(session, start=Position(0, len(first)))
    assert_same_bits(([*first, *rest[0]], rest[1]), whole)
    assert_nothing_is_under_way(session)


def test_auto_gathers_what_the_device_does_not_have(graph):
    few, most = (
        session_of(graph, placement={**PINNED, "cache_rows": rows}).execution.placed.decision for rows in (40, 110)
    )
    assert few.gathers and not most.gathers


@pytest.mark.long
def test_stages_know_the_time_of_the_paths(graph):
    session = session_of(graph, feature_paths=EVERY, epochs=1)
    with session.execution.steps(schedule_of(session), START, lambda position: 2, lambda *_: None) as steps:
        next(iter(steps))
        assert list(steps.times()) == ["sample", "transfer", "compute"]


def test_what_cannot_be_is_refused(graph):
    with refused("invalid-document feature_paths pinned"):
        job_of({"feature_paths": ["cache"]})
    with refused("invalid-document feature_paths"):
        job_of({"feature_paths": ["pigeon"]})
    with refused("unsupported-combination cache_rows feature_paths"):
        session_of(graph, feature_paths=["pinned"], placement={**PINNED, "cache_rows": 5})
    assert job_of({"feature_paths": "pinned,gathered"}).row_paths == {"pinned", "gathered"}
