"""Do orders of coflows bring on real links what the simulator says?

A step of training a language model is carried out by hosts in a box (hosts.py): every device is a process on a host of
its own that sleeps as long as its passes take and sends its flows' bytes over TCP, in the order and with the
dependencies of the workload (replay_bed.py, replay_host.py). Links serve classes of packets in strict order, as many as
there are queues; under `fair` all flows have one. The policies take turns, and each run is several steps long.

  dense     4 stages x 2 data ranks: flows between stages against gradients and parameters
  experts   2 stages x 4 data ranks, experts over all four: all-to-alls too

`step_s` is the median of all runs, from the first step's last pass to the last one's; `predicted_s` is the simulator's,
with the same queues, at the links' rate less the headers of full frames, and `silent_s` its step if nothing had to
travel; `error` is the prediction over what was measured, less 1. A second table has the mean times from a coflow's
first start to its last end, by kind: `pp` between stages, `ep` to experts and back, `reduce` and `gather` over data
ranks.

The simulator knows nothing of acknowledgements, of how TCP shares, nor of what a link lets through at once after a
pause: a flow alone takes some 3 ms less here than it says. Nor does it know of processors, which all hosts share:
`processors` is the share of them that was busy, whoever kept them so.
Run, as root: python benchmarks/replay.py [--jobs dense,experts] [--rate 50] [--rounds 3] [--queues 4] [--json]
"""

import argparse
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil

from hosts import Host, check_allowed, hosts
from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.simulate.llm.fabric import Servers
from penstock.simulate.llm.job import Compute, LlmJob
from penstock.simulate.llm.model import Model, Parallelism
from penstock.simulate.llm.step import LlmStep, build_step
from penstock.simulate.simulation import Simulator, simulate, with_queues
from penstock.simulate.timeline import Timeline, coflow_times, step_seconds
from penstock.simulate.workload import Amounts
from products_graph import show
from replay_bed import MOST_QUEUES, give_classes, replay

HOSTS = 8
PAYLOAD = 1448 / 1514
"""Of a full Ethernet frame: what TCP carries in it."""
POLICIES = ("fair", "hermod", "slack")
JOBS: dict[str, tuple[Model, Parallelism, Compute]] = {
    "dense": (
        Model(layers=16, hidden=256, heads=4, sequence=1024, feed_forward=1024),
        Parallelism(pipeline=4, data=2, microbatches=4),
        Compute(attention_ms=10, feed_forward_ms=10),
    ),
    "experts": (
        Model(layers=8, hidden=192, heads=4, sequence=512, feed_forward=192, experts=8, top_k=1, shared=768),
        Parallelism(pipeline=2, data=4, expert=4, microbatches=2),
        Compute(attention_ms=10, feed_forward_ms=10),
    ),
}
"""Small models whose step has more to send than to compute at 50 Mbit/s a host."""


@dataclass(frozen=True, eq=False)
class Expected:
    """A job's step under a policy, as the simulator sees it."""

    step: LlmStep
    timeline: Timeline
    silent: Timeline
    queues: Array  # int64 [iterations, flows]

    @property
    def classes(self) -> int:
        """Queues that links need."""
        return int(self.queues.max()) + 1


def main() -> int:
    """Both tables."""
    options = _options()
    try:
        check_allowed()
        rows, times = measure(options)
    except PenstockError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    show("replay: steps", rows, options.json)
    show("replay: coflows", times, options.json)
    return 0


def measure(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row for every job and policy, and one for every kind of coflow in them."""
    rows: list[dict[str, Any]] = []
    times: list[dict[str, Any]] = []
    for job in options.jobs:
        if job not in JOBS:
            raise PenstockError(f"No job here is called {job!r}{nearest(job, JOBS)}", code="unknown-name")
        expected = {policy: expect(job, policy, options) for policy in options.policies}
        found: dict[str, list[tuple[Timeline, float]]] = {policy: [] for policy in expected}
        for number in range(options.rounds):
            for policy, each in expected.items():
                # Hosts of its own: connections and queues of the last run are gone.
                with hosts([options.rate] * HOSTS) as bed:
                    found[policy].append(carry_out(each, bed))
                took = _step_seconds(found[policy][-1][0])
                print(f"{job}, {policy}, round {number + 1}: {took:.3f} s a step", file=sys.stderr)
        made = [_row(job, policy, each, found[policy]) for policy, each in expected.items()]
        rows += [row | _speedups(made[0], row) for row in made]
        for policy, each in expected.items():
            times += _kind_rows(job, policy, each.timeline, [timeline for timeline, _ in found[policy]])
    return rows, times


def expect(name: str, policy: str, options: argparse.Namespace) -> Expected:
    """The step of a job, its prediction, and the queue of every flow."""
    model, parallel, compute = JOBS[name]
    servers = Servers(HOSTS, gpus=1, nics=1, nic_gbps=options.rate / 1000 * PAYLOAD)
    step = build_step(LlmJob(model, parallel, servers, compute, simulate="all"))
    simulator = Simulator(step.load, step.network, options.steps, policy)
    simulator = with_queues(simulator, step.placement, options.queues)
    timeline = simulator.timeline(step.placement)
    seconds, sizes = timeline.case.amounts
    silent = simulate(step.load, step.network, step.placement, Amounts(seconds, np.zeros_like(sizes)), "fair")
    return Expected(step, timeline, silent, np.broadcast_to(simulator.policy.terms(timeline.case).rank, sizes.shape))


def carry_out(expected: Expected, bed: list[Host]) -> tuple[Timeline, float]:
    """What really happened, as a timeline, and the share of processors that was busy."""
    give_classes(bed, expected.classes)
    psutil.cpu_percent()
    load, case = expected.step.load, expected.timeline.case
    found = replay(load, expected.step.placement, case.amounts, expected.queues, bed)
    busy = psutil.cpu_percent() / 100
    return replace(expected.timeline, starts=found.starts, ends=found.ends, makespan=float(found.ends.max())), busy


def _row(job: str, policy: str, expected: Expected, found: list[tuple[Timeline, float]]) -> dict[str, Any]:
    taken = [_step_seconds(timeline) for timeline, _ in found]
    middle, predicted = statistics.median(taken), _step_seconds(expected.timeline)
    return {
        "job": job,
        "policy": policy,
        "queues": expected.classes,
        "silent_s": _step_seconds(expected.silent),
        "step_s": middle,
        "fastest_s": min(taken),
        "slowest_s": max(taken),
        "predicted_s": predicted,
        "error": predicted / middle - 1,
        "processors": statistics.median(busy for _, busy in found),
        "rounds": len(taken),
    }


def _speedups(first: dict[str, Any], row: dict[str, Any]) -> dict[str, float]:
    names = {"speedup": "step_s", "predicted_speedup": "predicted_s"}
    return {name: first[seconds] / row[seconds] for name, seconds in names.items()}


def _kind_rows(job: str, policy: str, expected: Timeline, found: list[Timeline]) -> Iterable[dict[str, Any]]:
    """Mean times of coflows, by what they are for."""
    for kind in sorted({kind.partition("-")[0] for kind in expected.load.flow_kinds}):
        taken, predicted = statistics.median(_mean_seconds(each, kind) for each in found), _mean_seconds(expected, kind)
        yield {"job": job, "policy": policy, "kind": kind, "cct_s": taken, "predicted_s": predicted,
               "error": predicted / taken - 1}  # fmt: skip


def _mean_seconds(timeline: Timeline, family: str) -> float:
    """Of the coflows of some kinds, which go forward or backward."""
    kinds = {kind for kind in timeline.load.flow_kinds if kind.partition("-")[0] == family}
    times = [coflow_times(timeline, kind) for kind in sorted(kinds)]
    return sum(each.mean_cct_s * each.count for each in times) / sum(each.count for each in times)


def _step_seconds(timeline: Timeline) -> float:
    return step_seconds(timeline.case, timeline.ends)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=lambda text: text.split(","), default=list(JOBS))
    parser.add_argument("--policies", type=lambda text: text.split(","), default=list(POLICIES))
    parser.add_argument("--rate", type=float, default=50.0, help="Mbit/s of every host's link")
    parser.add_argument("--queues", type=int, default=4, help=f"for flows, at most {MOST_QUEUES}")
    parser.add_argument("--steps", type=int, default=4, help="of a run; at least 2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
