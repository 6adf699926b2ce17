"""Workloads carried out by hosts in a box: dependencies are kept, bytes arrive, and classes are what links have."""

import os
from argparse import Namespace
from pathlib import Path

import numpy as np

from boxed_hosts import boxed, hosts_or_skip, resent_bytes
from penstock.simulate.timeline import step_seconds
from penstock.simulate.workload import WorkloadBuilder, draw_amounts
from refusals import refused
from replay import expect, main
from replay_bed import MOST_QUEUES, give_classes, parts_of, replay

STEPS = 3
MILLISECOND = 1e-3
SIZE = 100_000


def chain():
    """Forward on one host, a flow to the other, backward there, and what the next step waits for back again."""
    building = WorkloadBuilder()
    forward = building.task("forward", "forward", 5 * MILLISECOND)
    backward = building.task("backward", "backward", 5 * MILLISECOND)
    building.flow(forward, backward, SIZE, "pp-forward", name="there")
    building.flow(backward, forward, SIZE, "reduce", name="back", arrival_lag=1)
    beside = building.flow(forward, backward, 3 * SIZE, "reduce", name="beside", awaited_by_target=False)
    last = building.task("last", "update", 0.0)
    building.wait(beside, last)
    inside = building.flow(forward, last, SIZE, "gather", name="inside")
    building.wait(inside, backward, 2)
    return building.build(), np.array([0, 1, 0], np.int32)


def kept(load, replayed):
    """Whether everything started after what it waited for."""
    for before, after, lag in zip(load.before, load.after, load.lags, strict=True):
        for step in range(lag, STEPS):
            assert replayed.starts[step, after] >= replayed.ends[step - lag, before], load.item_name(after)


def test_dependencies_are_kept_and_bytes_arrive():
    load, placement = chain()
    amounts = draw_amounts(load, STEPS)
    queues = np.tile(np.array([[0, 0, 1, 0]]), (STEPS, 1))
    with hosts_or_skip([200, 200]) as bed:
        give_classes(bed, 2)
        before = [host.carried() for host in bed]
        replayed = replay(load, placement, amounts, queues, bed, limit_s=60)
        carried = [np.subtract(host.carried(), then) for host, then in zip(bed, before, strict=True)]
        resent = sum(map(resent_bytes, bed))
        classes = bed[0].run("tc", "-s", "class", "show", "dev", boxed.DEVICE)
    kept(load, replayed)
    took = replayed.ends - replayed.starts
    assert (took[:, :2] >= 5 * MILLISECOND).all()
    # No faster than the link.
    assert (took[:, load.tasks : load.tasks + 2] >= 0.5 * SIZE / (200e6 / 8)).all()
    # With headers; notices and acknowledgements are small. What stays on a host is on no link.
    for (sent, received), flows in zip(carried, ((4, 1), (1, 4)), strict=True):
        assert STEPS * flows[0] * SIZE < sent < 1.3 * STEPS * flows[0] * SIZE + 50_000 + resent
        assert STEPS * flows[1] * SIZE < received < 1.3 * STEPS * flows[1] * SIZE + 50_000 + resent
    assert sent_of(classes, "11") > STEPS * SIZE
    assert sent_of(classes, "12") > STEPS * 3 * SIZE
    assert not list(Path("/run/netns").glob(f"{boxed.PREFIX}{os.getpid()}s*"))


def sent_of(shown, number):
    """Bytes of a class in tc's words."""
    block = next(block for block in shown.split("class htb ") if block.startswith(f"5053:{number} "))
    return int(block.split("Sent ")[1].split()[0])


def test_the_first_queue_goes_first():
    """The longer of two flows over one link: with equal shares it would end last."""
    building = WorkloadBuilder()
    source, target = (building.task(name, "update", 0.0) for name in ("source", "target"))
    for name, size in (("long", 4 * SIZE), ("short", 2 * SIZE)):
        building.flow(source, target, size, "pp-forward", name=name)
    load = building.build()
    with hosts_or_skip([20, 20]) as bed:
        give_classes(bed, 2)
        queues = np.array([[0, 1]])
        replayed = replay(load, np.array([0, 1]), draw_amounts(load, 1), queues, bed, limit_s=60)
    long, short = replayed.ends[0, load.tasks :]
    assert long < short


def test_a_host_that_ends_early_is_reported():
    load, placement = chain()
    with hosts_or_skip([200, 200]) as bed:
        give_classes(bed, 1)
        with refused("external-failure -9"):
            replay(load, placement, draw_amounts(load, STEPS), np.zeros((1, 1), np.int64), bed, limit_s=0.0)


def test_parts_say_what_each_host_does():
    load, placement = chain()
    parts = parts_of(load, placement, draw_amounts(load, STEPS), np.zeros((1, 1), np.int64), ["a", "b"])
    forward, backward, last, there, back, beside, inside = range(7)
    assert set(parts[0]["runs"]) == {forward, last, inside}
    assert set(parts[1]["runs"]) == {backward}
    assert set(parts[0]["sends"]) == {there, beside} == set(parts[1]["receives"])
    assert parts[0]["receives"] == [back]
    # A flow's sender is told that it has arrived; a task's end is told where something waits for it.
    assert parts[1]["tells"] == {backward: [], there: [0], beside: [0]}
    assert parts[0]["tells"] == {forward: [], last: [], back: [1], inside: [1]}
    assert sorted(parts[1]["waits"][backward]) == [(backward, 1), (there, 0), (inside, 2)]


def test_what_has_no_host_is_refused():
    load, placement = chain()
    with refused("infeasible 1 hosts"):
        parts_of(load, placement, draw_amounts(load, STEPS), np.zeros((1, 1), np.int64), ["a"])
    for queues in (0, MOST_QUEUES + 1):
        with refused("value-out-of-range queues"):
            give_classes([], queues)


def test_the_prediction_has_the_queues_that_are_given():
    options = Namespace(rate=50.0, queues=3, steps=2)
    fair, hermod = (expect("dense", policy, options) for policy in ("fair", "hermod"))
    assert (fair.classes, hermod.classes) == (1, 3)
    silent, ordered, shared = (
        step_seconds(each.case, each.ends) for each in (fair.silent, hermod.timeline, fair.timeline)
    )
    assert silent < ordered < shared
    # Every device has a host, and the places beyond them send nothing.
    load, amounts = hermod.step.load, hermod.timeline.case.amounts
    parts = parts_of(load, hermod.step.placement, amounts, hermod.queues, [str(rank) for rank in range(8)])
    assert sum(len(part["sends"]) for part in parts) == load.flows
    marks = {mark for part in parts for sent in part["sends"].values() for mark in sent["marks"]}
    assert len(marks) == 3


def test_without_root_the_benchmark_says_so(monkeypatch, capsys):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("sys.argv", ["replay.py"])
    assert main() == 2
    assert "needs root" in capsys.readouterr().err
