"""A script: a worker joins a group whose other member is lost before it comes. It prints what became of it.

In a process of its own: whatever waits in NCCL stays there until the process ends.
"""

import os
import sys
import threading
import traceback
from pathlib import Path

import torch

TESTS = Path(__file__).parent.parent
sys.path += [str(TESTS), str(TESTS / "cluster")]

from test_worker_group import at_once  # noqa: E402
from wired import team_of, template_for, wired  # noqa: E402

from penstock.cluster.rendezvous import Rendezvous  # noqa: E402
from penstock.cluster.worker.collectives import DeviceCollectiveGroup  # noqa: E402
from penstock.train.steps.group import RegroupError  # noqa: E402

DEVICE = torch.device("cuda")
SOON = 2.0
"""Seconds until the other member is lost."""


def main() -> None:
    """Sums work before, and in a group that is made afterwards."""
    sum_alone()
    meeting = Rendezvous(2)
    _, members = wired(template_for(2, patience=60.0), meeting.handlers(), (0, 1))
    teams = [team_of(member) for member in members]
    at_once(*(lambda team=team: team.meet(0) for team in teams))
    threading.Timer(SOON, lambda: meeting.rounds.lose(1)).start()
    try:
        DeviceCollectiveGroup(members[0], teams[0].generation, DEVICE)
        print("joining came about", flush=True)
    except RegroupError:
        print("joining called off", flush=True)
    sum_alone()


def sum_alone() -> None:
    """A group of one."""
    _, (member,) = wired(template_for(1), Rendezvous(1).handlers(), (0,))
    numbers = torch.arange(3.0, device=DEVICE)
    group = DeviceCollectiveGroup(member, team_of(member).meet(0).generation, DEVICE)
    group.sum(numbers)
    group.close()
    print("summed", numbers.tolist(), flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(0)
