"""Run a placed workload under a policy: `simulate` for a timeline, `Simulator` for a search over makespans."""

from time import perf_counter

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.hardware.machines import Network
from penstock.simulate.engine import Executor
from penstock.simulate.rates import POLICIES
from penstock.simulate.rates.compression import check_coflows, compressed
from penstock.simulate.state import PRIORITY, Case, RatePolicy, by_rank, routes_of, shape_of
from penstock.simulate.timeline import Timeline, step_seconds
from penstock.simulate.transport import transport_of
from penstock.simulate.workload import Amounts, Workload, draw_amounts


def simulate(
    load: Workload,
    network: Network,
    placement: Array,
    amounts: Amounts | int = 1,
    policy: str | RatePolicy = "oes",
    speeds: Array | None = None,
    segments: bool = False,
) -> Timeline:
    """The timeline of a workload; `amounts` may be a number of iterations, each with the mean amounts.

    `speeds` [machines] divides the seconds of the tasks there; `segments` also records every change of a flow's rate.
    """
    return Simulator(load, network, amounts, policy, speeds).timeline(placement, segments)


class Simulator:
    """One workload on one network with given amounts: makespans of one placement after the other, in reused memory."""

    def __init__(
        self,
        load: Workload,
        network: Network,
        amounts: Amounts | int,
        policy: str | RatePolicy = "oes",
        speeds: Array | None = None,
    ) -> None:
        self.load, self.network = load, network
        self.amounts = draw_amounts(load, amounts) if isinstance(amounts, int) else amounts
        self.policy = POLICIES[policy] if isinstance(policy, str) else policy
        self.speeds = _checked_speeds(speeds, len(network.machines))
        _check_amounts(load, self.amounts)
        self.iterations = len(self.amounts.seconds)
        self._shape = shape_of(load, self.iterations)
        self._executor = Executor()

    def under(self, ranks: Array) -> "Simulator":
        """The same under strict priority by `ranks`, entry [n, f]."""
        return Simulator(
            self.load, self.network, self.amounts, by_rank(self.policy.name, lambda case: ranks), self.speeds
        )

    def makespan(self, placement: Array) -> float:
        """Seconds from the first start to the last end; nothing is recorded."""
        case = self.case(placement)
        return self._executor.run(self.policy.family, case, self.policy.terms(case)).makespan

    def timeline(self, placement: Array, segments: bool = False) -> Timeline:
        """Starts and ends of everything, and with `segments` the rates of flows over time."""
        case, began = self.case(placement), perf_counter()
        terms = self.policy.terms(case)
        makespan, events, record = self._executor.run(self.policy.family, case, terms, times=True, segments=segments)
        return Timeline(
            self.load, self.network, case, terms.weight, record.starts, record.ends, makespan, events,
            perf_counter() - began, record.owner, record.changes, record.late,
        )  # fmt: skip

    def case(self, placement: Array) -> Case:
        """The workload as placed: what a policy sees."""
        machines = self.load.settled(placement, len(self.network.machines))
        routes = routes_of(self.load, self.network, machines)
        slowness = 1.0 / self.speeds[machines]
        load = self.load
        if self.network.free_cores is not None:
            slowness = slowness * _crowding(load, machines, self.network.free_cores)
        return Case(
            self._shape, load.order, load.coflows, routes, self.amounts, slowness,
            load.task_kinds, load.flow_kinds, load.microbatches, load.layers,
            transport_of(self.network, routes) if self.network.transport else None,
        )  # fmt: skip


def with_queues(simulator: Simulator, placement: Array, queues: int) -> Simulator:
    """The same with the policy's order carried out by so many queues of strict priority.

    For a policy that chose among several orders, the one that so many queues carry out best is taken.
    """
    policy = simulator.policy
    if policy.family != PRIORITY:
        raise PenstockError(
            f"Policy {policy.name} has no priorities: leave out queues, or choose a policy that has.",
            code="unsupported-combination",
        )
    if queues < 1:
        raise PenstockError(f"The number of queues is {queues}: give at least 1.", code="value-out-of-range")
    case = simulator.case(placement)
    check_coflows(case)
    orders = [policy.terms(case).rank] if policy.orders is None else policy.orders(case)
    tried = [_in_queues(simulator, placement, ranks, queues) for ranks in orders]
    return min(tried, key=lambda each: each[0])[1]


def _in_queues(simulator: Simulator, placement: Array, ranks: Array, queues: int) -> tuple[float, Simulator]:
    """Seconds of a step under an order in so many queues, and its simulator."""
    found = simulator.under(ranks).timeline(placement)
    tasks = simulator.load.tasks
    rank = compressed(found.case, ranks, found.starts[:, tasks:], found.ends[:, tasks:], queues)
    chosen = simulator.under(np.ascontiguousarray(rank))
    found = chosen.timeline(placement)
    return step_seconds(found.case, found.ends), chosen


def _crowding(load: Workload, machines: Array, free: Array) -> Array:
    """How many times as long each task takes where tasks want more cores than other tenants leave, float64 [tasks].

    What computes on a GPU takes as long as ever.
    """
    if "cores" not in load.resources:
        return np.ones(load.tasks)
    wanted = np.bincount(machines, weights=load.resources["cores"], minlength=len(free))
    factor = np.maximum(1.0, wanted / free)[machines]
    return np.where(load.resources["gpus"][load.beside] > 0, 1.0, factor) if "gpus" in load.resources else factor


def _checked_speeds(speeds: Array | None, machines: int) -> Array:
    if speeds is None:
        return np.ones(machines)
    out = np.asarray(speeds, np.float64)
    if out.shape != (machines,) or not (np.isfinite(out).all() and (out > 0).all()):
        raise PenstockError(
            f"The speeds must be {machines} finite numbers above 0, one for each machine.", code="shape-mismatch"
        )
    return out


def _check_amounts(load: Workload, amounts: Amounts) -> None:
    seconds, sizes = amounts
    if seconds.shape[1:] != (load.tasks,) or sizes.shape != (len(seconds), load.flows) or len(seconds) == 0:
        raise PenstockError(
            f"The amounts are {seconds.shape} seconds and {sizes.shape} bytes where the workload has {load.tasks} tasks"
            f" and {load.flows} flows: draw them for this workload.",
            code="shape-mismatch",
        )
    for values in amounts:
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise PenstockError(
                "The amounts hold a number that is negative or not finite: draw them again.", code="value-out-of-range"
            )
