"""Checks of what is planned, simulated and scheduled: policies, selectors, schedulers, operators, launchers."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.graph.arrays import Array

if TYPE_CHECKING:
    from penstock.cluster.launch import LauncherEntry
    from penstock.coflow import Phase
    from penstock.cost.operators import Operator
    from penstock.paths.selectors import Selector
    from penstock.plan.placement import PlacementPolicy
    from penstock.plan.workloads import PlannedRun, WorkloadEntry
    from penstock.service.policies import DeviceRoom, QueuePolicy, RunningJob, Start, WaitingJob
    from penstock.service.sharing import SharingWay
    from penstock.simulate.shop.schedule import Scheduler
    from penstock.simulate.state import RatePolicy


def require(held: bool, sentence: str) -> None:
    """Raise AssertionError with the sentence unless `held`; unlike `assert`, under `python -O` as well."""
    if not held:
        raise AssertionError(sentence)


# Policies that share links, and schedules of all-to-alls.

_SLACK = 1 + 1e-6


def check_rate_policy(policy: "RatePolicy", cases: int = 5) -> None:
    """Check that all bytes arrive, links stay within capacity, no run beats the lower bound, and each run repeats."""
    from penstock.simulate import lower_bound
    from penstock.simulate.simulation import Simulator

    for seed in range(cases):
        load, network, placement, amounts = _small_workload(seed)
        simulator = Simulator(load, network, amounts, policy)
        timeline = simulator.timeline(placement, segments=True)
        require(bool(np.isfinite(timeline.ends).all()), f"under {policy.name} a task or flow never ends")
        require(bool((timeline.link_use <= _SLACK).all()), f"under {policy.name} a link carries more than its capacity")
        for flow in np.flatnonzero(timeline.case.routes.flow_path >= 0):
            sent = sum((each.end - each.start) * each.rate for each in timeline.segments(int(flow), 0))
            require(
                bool(np.isclose(sent, amounts.sizes[0, flow], rtol=1e-6, atol=1e-9)), "a flow's bytes do not arrive"
            )
        bound = lower_bound(simulator.case(placement))
        require(timeline.makespan >= bound * (1 - 1e-9), f"{policy.name} beats what no schedule can")
        require(simulator.makespan(placement) == timeline.makespan, f"{policy.name} gives two times for one placement")


def _small_workload(seed: int) -> Any:
    from penstock.simulate import GnnJob, PeakToMean, draw_amounts, gnn_workload, star

    rng = np.random.default_rng(seed)
    load = gnn_workload(GnnJob(2, 2, 2, 1, 0.1, 0.5, 1.0, 0.1, 8.0, 4.0, 2.0, rng.uniform(0.1, 1, (4, 2))))
    network = star(rng.uniform(1, 10, 3), rng.uniform(1, 10, 3))
    spreads = dict.fromkeys(load.item_kinds, PeakToMean(1.7))
    return load, network, rng.integers(0, 3, load.tasks), draw_amounts(load, 3, seed, spreads)


def check_all_to_all_schedule(schedule: "Callable[[Array], list[Phase]]", matching: bool = True) -> None:
    """Check that every rank's bytes are sent once; with `matching`, that no port has two flows in a phase."""
    rng = np.random.default_rng(0)
    for count in (1, 2, 5):
        demand = rng.integers(0, 50, (count, count))
        np.fill_diagonal(demand, 0)
        sent = np.zeros_like(demand)
        for phase in schedule(demand.copy()):
            used = phase.peers >= 0
            np.add.at(sent, (phase.senders[used], phase.peers[used]), phase.sizes[used])
            for ends in (phase.senders[used], phase.peers[used]):
                require(not matching or len(np.unique(ends)) == len(ends), "a phase has two flows at one port")
            require(not matching or phase.weight >= phase.sizes[used].max(initial=0), "a flow outlasts its phase")
        require(np.array_equal(sent, demand), f"of {count} ranks' bytes others are sent than there are")


# Policies that place tasks, and builders of workloads.


def check_placement(policy: "PlacementPolicy") -> None:
    """Check that machines stay within their limits, pinned tasks stay, and a seed gives one placement."""
    from penstock.hardware.machines import star
    from penstock.plan.placement import Budget, Evaluator, placement_problem
    from penstock.simulate import GnnJob, gnn_workload

    needs = {"worker": {"gpus": 1.0, "cores": 1.0}, "sampler": {"cores": 2.0}, "server": {"cores": 1.0}}
    job = GnnJob(3, 3, 1, 1, pull_bytes=8e6, batch_bytes=8e6, model_bytes=1e5, worker_seconds=0.004, resources=needs)
    nics = np.array([100e6, 500e6, 200e6])
    problem = placement_problem(gnn_workload(job), star(nics, nics), {"cores": [8.0] * 3, "gpus": [2.0] * 3})
    found = [policy(problem, Evaluator(problem, "oes"), Budget(steps=200), 5) for _ in range(2)]
    units = found[0].units
    require(not problem.over_use(units).any(), "a machine holds more than it has")
    fixed = problem.home >= 0
    require(np.array_equal(units[fixed], problem.home[fixed]), "a task that is bound to a machine was moved")
    require(np.array_equal(units, found[1].units), "the same seed gives two placements")
    require(found[0].steps <= 200, "a policy takes more steps than it was given")


def check_workload(entry: "WorkloadEntry", run: "PlannedRun") -> None:
    """Check that a run's section of a plan can be written and read back, and that conditions are a mapping."""
    section = entry.set_up(run)
    written = section.model_dump(mode="json")
    require(entry.section.model_validate(written) == section, f"the section of {entry.mode} is read as another one")
    require(isinstance(entry.conditions(run.cluster), dict), f"the conditions of {entry.mode} are no mapping")


# Policies of the queue, and ways of sharing a device.


def check_queue_policy(policy: "type[QueuePolicy]") -> None:
    """Check that only waiting jobs start, once, where they fit on devices of their kind, by priority."""
    from penstock.service.policies import DeviceRoom, RunningJob, WaitingJob

    gpu = DeviceRoom(name="cuda:0", kind="cuda", bytes=100, host_bytes=50, cores=8, machine="a", concurrent=4)
    cpu = DeviceRoom(name="cpu", kind="cpu", host_bytes=50, cores=8, machine="a", concurrent=4)
    devices, chosen = [gpu, cpu], policy()
    rng = np.random.default_rng(0)
    for round_ in range(50):
        waiting = [
            WaitingJob(
                id=f"job-{order}",
                kind=str(rng.choice(["cuda", "cpu"])),
                device_bytes=int(rng.integers(0, 130)),
                host_bytes=int(rng.integers(0, 30)),
                cores=float(rng.integers(0, 5)),
                alone=bool(rng.random() < 0.1),
                submitted=order,
                waited_s=float(rng.integers(0, 4000)),
            )
            for order in range(int(rng.integers(0, 9)))
        ]
        held = [RunningJob(id="old", kind="cuda", device="cuda:0", device_bytes=30, cores=2)] if round_ % 3 == 0 else []
        starts = chosen.choose(waiting, held, devices)
        _check_starts(starts, waiting, held, devices)
        require(starts == policy().choose(waiting, held, devices), "the same question has two answers")
    urgent = WaitingJob(id="urgent", kind="cuda", device_bytes=95, submitted=9, priority=1)
    others = [WaitingJob(id=str(size), kind="cuda", device_bytes=size, submitted=size) for size in (10, 20)]
    first = [start.id for start in chosen.choose([*others, urgent], [], devices)]
    require(first == ["urgent"], "a job of a higher priority does not go first")


def _check_starts(
    starts: "list[Start]", waiting: "list[WaitingJob]", held: "list[RunningJob]", devices: "list[DeviceRoom]"
) -> None:
    jobs, rooms = {job.id: job for job in waiting}, {room.name: room for room in devices}
    require(len({start.id for start in starts}) == len(starts), "a job is started twice")
    require(all(start.id in jobs and start.device in rooms for start in starts), "a start names no job or no device")
    beside: dict[str, list[Any]] = {name: [job for job in held if job.device == name] for name in rooms}
    for start in starts:
        beside[start.device].append(jobs[start.id])
    everyone = [job for some in beside.values() for job in some]
    require(sum(job.host_bytes for job in everyone) <= 50, "jobs take more of the host's memory than there is")
    require(sum(job.cores for job in everyone) <= 8, "jobs take more cores than there are")
    for name, some in beside.items():
        room, size = rooms[name], sum(job.device_bytes for job in some)
        require(name == "cpu" or size <= room.bytes, f"jobs take {size} bytes of {name}, which has {room.bytes}")
        require(all(job.kind == room.kind for job in some), f"a job of another kind runs on {name}")
        require(len(some) <= (room.concurrent or len(some)), f"{name} has more jobs than places")
        require(len(some) < 2 or not any(job.alone for job in some), "a job that must run alone has company")


def check_sharing(way: "SharingWay") -> None:
    """Check that it has a name, and names what it lacks as part of a sentence, without changing anything."""
    require(bool(way.name), "a way of sharing has no name")
    with TemporaryDirectory() as folder:
        lacks = way.lacks(Path(folder), [])
        require(lacks is None or (bool(lacks) and not lacks.endswith(".")), f"{lacks!r} is not part of a sentence")
        require(not list(Path(folder).iterdir()), "asking what is lacking leaves files behind")


# Path selectors, schedulers of job shops, operators of the cost model.


def check_path_selector(selector: "Selector", argument: str = "fast") -> None:
    """Check that every request takes a path of its own type and ends, and that a seed gives the same choices."""
    from penstock.paths import SELECTORS, build_routes
    from penstock.paths.documents import ApplicationDocument, HardwareDocument
    from penstock.paths.request_sequence import draw_sequence
    from penstock.paths.simulation import simulate_paths

    net: Any = {"net": {"gbps": 100, "latency_us": 10, "jitter_us": [0, 6], "network": True}}
    nodes: Any = {"a": {}, "fast": {}, "slow": {"capacity": 2}}
    hardware = HardwareDocument(name="two", nodes=nodes, links=net, routes={"a > fast": ["net"], "a > slow": ["net"]})
    paths = {name: [{"go": ["a", name]}, {"compute": name, "us": us}] for name, us in (("slow", 5.0), ("fast", 2.0))}
    requests: Any = {"ask": {"paths": paths}}
    workloads: Any = {"all": {"ask": 1}}
    application = ApplicationDocument(name="two", hardware="two", workloads=workloads, requests=requests)
    table = build_routes(application, hardware)
    sequence = draw_sequence(application, None, 1e5, 200, seed=1)
    named = f"{selector.name}:{argument}" if selector.argument else selector.name
    with SELECTORS.added(selector.name, selector):
        one, other = (simulate_paths(table, sequence, named, seed=3).record for _ in range(2))
    require(bool(np.isin(one.path, [0, 1]).all()), f"{named} sends a request along no path")
    require(bool((np.isfinite(one.end) & (one.end > 0)).all()), f"under {named} a request never ends")
    require(np.array_equal(one.path, other.path), f"{named} chooses otherwise for the same seed")


def check_shop_scheduler(scheduler: "Scheduler", **options: Any) -> None:
    """Check that every operation is done once, in order, on a machine that can, and that the bound is not beaten."""
    from penstock.simulate.shop import Choice, Shop, check_schedule, shop_bound

    def operation(*times: float) -> tuple[Choice, ...]:
        return tuple(Choice(machine, time) for machine, time in enumerate(times))

    jobs = ((operation(3, 5), operation(2, 1)),), ((operation(4, 4),),), ((operation(1, 2), operation(6, 2)),)
    shop = Shop("three", ("cpu", "gpu"), jobs)
    found = scheduler.schedule(shop, scheduler.options.model_validate(options))
    check_schedule(shop, found)
    require(found.makespan >= shop_bound(shop) * (1 - 1e-9), f"{scheduler.name} beats what no schedule can")
    require(found.proved is None or found.proved <= found.makespan * _SLACK, "more is proved than was scheduled")


def check_operator(operator: "Operator") -> None:
    """Check that sizes and work are finite and not negative, some work is done, and a larger rung has no less."""
    from penstock.cost.operators.entry import made_graph, rung_of
    from penstock.nn.operator_costs import Processor

    processor = Processor(1e6, 32e6)
    rungs = [rung_of(made_graph(nodes, 4), seeds, (3, 2), 0, 8, 6) for nodes, seeds in ((60, 8), (600, 128))]
    small, large = (operator.work(operator.sizes(rung), processor) for rung in rungs)
    for amounts in (small, large):
        require(
            all(np.isfinite(amount) and amount >= 0 for amount in amounts.values()), "work is negative, or no number"
        )
        require(any(amount > 0 for amount in amounts.values()), f"{operator.name} has nothing to do")
    require(small.keys() == large.keys(), f"{operator.name} has other kinds of work on another rung")
    require(sum(large.values()) >= sum(small.values()), f"{operator.name} has less to do on a larger rung")


# Launchers.


def check_launcher(entry: "LauncherEntry", name: str = "mine") -> None:
    """Check that the facts agree with the launcher, and that one that started nothing can be closed twice."""
    from penstock.cluster.launch import LAUNCHERS, make_launcher
    from penstock.hardware.cluster import LAUNCHER_FACTS, ClusterDocument, Machine

    require(entry.facts.discovers == (entry.discover is not None), "`discovers` and `discover` do not agree")
    with LAUNCHERS.added(name, entry), LAUNCHER_FACTS.added(name, entry.facts), TemporaryDirectory() as folder:
        launcher = make_launcher(ClusterDocument(machines=[Machine(name="m0")], launcher=name), Path(folder))
        require(launcher.interface is None or isinstance(launcher.interface, str), "`interface` is no address")
        require(callable(launcher.start), "a launcher has no `start`")
        launcher.close()
        launcher.close()
