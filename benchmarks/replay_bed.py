"""A workload carried out by hosts in a box: what each has to do, their links' classes, and when everything happened.

Links serve classes in strict order, as `penstock net apply` sets them: notices, acknowledgements and TCP's own go
first, then queue after queue. All flows in one queue share as TCP shares.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hosts import DEVICE, Host
from penstock.cluster.shaping import FlowGroup, FlowGroups, carry_out, classes_of, clear_commands, set_commands
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.hardware.cluster import Machine
from penstock.simulate.workload import Amounts, Workload

MOST_QUEUES = 6
"""Beside the urgent class and the rest: the kernel has eight priorities."""
_URGENT, _FIRST, _APART = 56, 48, 8
"""DSCP of what goes before all queues, of the first queue, and from one to the next."""
_BUNDLE = 16 << 10
"""Bytes that the kernel hands on as one packet: while it leaves, nothing more urgent can."""
_HEAD_START = 0.5
"""Seconds from the last host that listens to the first task."""


@dataclass(frozen=True, eq=False)
class Replayed:
    """What happened, in seconds from the first start."""

    starts: Array  # float64 [iterations, items]
    ends: Array  # float64 [iterations, items]


def replay(
    load: Workload, placement: Array, amounts: Amounts, queues: Array, bed: Sequence[Host], limit_s: float = 300.0
) -> Replayed:
    """Carry a workload out; `queues` [iterations, flows] are the flows' classes, machine m is the m-th host.

    The links must have classes for as many queues (`give_classes`).
    """
    parts = parts_of(load, placement, amounts, queues, [host.address for host in bed])
    started: list[subprocess.Popen[str]] = []
    watch = threading.Timer(limit_s, _kill, [started])
    try:
        command = [sys.executable, "-S", str(Path(__file__).with_name("replay_host.py"))]
        for host in bed:
            with host.entered():
                pipe = subprocess.PIPE
                started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        watch.start()
        for process, part in zip(started, parts, strict=True):
            _say(process, json.dumps(part))
        for process in started:
            _heard(process)
        begin = time.monotonic() + _HEAD_START
        for process in started:
            _say(process, repr(begin))
        answers = [json.loads(_heard(process)) for process in started]
    finally:
        watch.cancel()
        _kill(started)
        for process in started:
            process.communicate()
    return _gathered(load, amounts, answers)


def give_classes(bed: Sequence[Host], queues: int) -> None:
    """Both ends of every link: what a host sends, and what the switch sends to it."""
    if not 1 <= queues <= MOST_QUEUES:
        raise PenstockError(
            f"Links cannot have {queues} queues here: give 1 to {MOST_QUEUES}.", code="value-out-of-range"
        )
    marks = {"urgent": _URGENT, **{f"queue{number}": _FIRST - _APART * number for number in range(queues)}}
    groups = FlowGroups(groups=[FlowGroup(name=name, dscp=mark) for name, mark in marks.items()], strict=True)
    for host in bed:
        machine = Machine(name=host.port, address=host.address, nic_gbps=host.rate_mbit / 1000)
        classes = classes_of(groups, machine, ())
        for place, device in ((host, DEVICE), (replace(host, namespace=host.switch), host.port)):
            place.run("ip", "link", "set", "dev", device, "gso_max_size", str(_BUNDLE))
            with place.entered():
                carry_out(device, [*clear_commands(device), *set_commands(classes, device)])


def parts_of(
    load: Workload, placement: Array, amounts: Amounts, queues: Array, addresses: Sequence[str]
) -> list[dict[str, Any]]:
    """What each host needs to know: what it runs, sends and receives, what that waits for, and whom it tells."""
    starter, knower = _owners(load, placement, len(addresses))
    tasks, steps = load.tasks, len(amounts.seconds)
    waits: dict[int, list[tuple[int, int]]] = {item: [] for item in range(load.items)}
    # A sender is always told: its connection is free for another flow.
    tells = {item: {starter[item]} if item >= tasks else set[int]() for item in range(load.items)}
    for before, after, lag in zip(*(each.tolist() for each in (load.before, load.after, load.lags)), strict=True):
        waits[after].append((before, lag))
        tells[before].add(starter[after])
    sizes = np.round(amounts.sizes).astype(np.int64)
    marks = (_FIRST - _APART * np.broadcast_to(queues, sizes.shape)) << 2
    out: list[dict[str, Any]] = [
        {"rank": rank, "addresses": list(addresses), "urgent": _URGENT << 2, "steps": steps}
        | {"runs": {}, "sends": {}, "receives": [], "waits": {}, "tells": {}}
        for rank in range(len(addresses))
    ]
    for item in range(load.items):
        here, there, flow = out[starter[item]], out[knower[item]], item - tasks
        here["waits"][item] = waits[item]
        there["tells"][item] = sorted(tells[item] - {knower[item]})
        if flow < 0:
            here["runs"][item] = amounts.seconds[:, item].tolist()
        elif here is there:
            # Within one host a flow takes no time.
            here["runs"][item] = [0.0] * steps
        else:
            sent = {"to": knower[item], "sizes": sizes[:, flow].tolist(), "marks": marks[:, flow].tolist()}
            here["sends"][item] = sent
            there["receives"].append(item)
    return out


def _owners(load: Workload, placement: Array, hosts: int) -> tuple[list[int], list[int]]:
    """For every item the host that starts it, and the one that knows when it has ended."""
    machines = np.asarray(placement)[load.beside]
    starter = np.concatenate([machines, machines[load.sources]])
    knower = np.concatenate([machines, machines[load.targets]])
    beyond = np.flatnonzero((starter >= hosts) | (knower >= hosts))
    busy = np.concatenate([load.task_seconds, load.flow_bytes]) > 0
    if busy[beyond].any():
        name = load.item_name(int(beyond[busy[beyond]][0]))
        raise PenstockError(
            f"{name} needs a machine beyond the {hosts} hosts: give more, or simulate all devices.", code="infeasible"
        )
    # A place without a host takes part in nothing: who counts its tasks as done does not matter.
    starter[beyond], knower[beyond] = 0, 0
    return starter.tolist(), knower.tolist()


def _gathered(load: Workload, amounts: Amounts, answers: list[dict[str, Any]]) -> Replayed:
    times = {name: np.full((len(amounts.seconds), load.items), np.nan) for name in ("starts", "ends")}
    for answer in answers:
        for name, found in times.items():
            for step, item, when in answer[name]:
                found[step, item] = when
    for found in times.values():
        missing = np.argwhere(np.isnan(found))
        if len(missing):
            step, item = missing[0].tolist()
            raise PenstockError(
                f"{load.item_name(item)} of step {step} was not carried out: this is a fault here.",
                code="unexpected-failure",
            )
    first = times["starts"].min()
    return Replayed(times["starts"] - first, times["ends"] - first)


def _kill(started: list[subprocess.Popen[str]]) -> None:
    for process in started:
        process.kill()


def _say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None, "it was started with a pipe"
    try:
        print(line, file=process.stdin, flush=True)
    except BrokenPipeError:
        raise _lost(process) from None


def _heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None, "it was started with a pipe"
    line = process.stdout.readline()
    if not line:
        raise _lost(process)
    return line


def _lost(process: subprocess.Popen[str]) -> PenstockError:
    code = process.wait()
    return PenstockError(
        f"A host of the replay ended with {code} before it was done: see its words above; -9 is for too slow.",
        code="external-failure",
    )
