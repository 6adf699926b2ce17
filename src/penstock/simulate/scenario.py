"""From a workload file to what is simulated: the workload, its network, its placement and its amounts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.hardware.machines import Network, racks, taken_of
from penstock.simulate.document import GnnDocument, MachineDocument, WorkloadDocument
from penstock.simulate.gnn import GnnJob, gnn_workload
from penstock.simulate.llm.document import LlmDocument
from penstock.simulate.llm.step import DELAYS, build_step
from penstock.simulate.simulation import Simulator, simulate, with_queues
from penstock.simulate.state import RatePolicy
from penstock.simulate.timeline import Timeline
from penstock.simulate.workload import Amounts, Item, PeakToMean, Workload, WorkloadBuilder, draw_amounts, merge

Value = TypeVar("Value")

_MOST_ITEMS = 50_000_000
_STEPS = 3
_GNN_FIELDS = set(GnnDocument.model_fields) - {"spread", "placement", "machines"}


@dataclass(frozen=True, eq=False)
class Scenario:
    """Everything a simulation needs but its policy."""

    load: Workload
    network: Network
    placement: Array  # int32 [tasks]: machine
    amounts: Amounts
    speeds: Array  # float64 [machines]
    language_model: bool = False

    def simulate(self, policy: str | RatePolicy = "oes", segments: bool = False, queues: int | None = None) -> Timeline:
        """The timeline under a policy; with `queues`, as so many queues carry it out."""
        simulator = Simulator(self.load, self.network, self.amounts, policy, self.speeds)
        if queues is not None:
            simulator = with_queues(simulator, self.placement, queues)
        return simulator.timeline(self.placement, segments)

    def silent(self) -> Timeline:
        """The timeline if flows took no time."""
        seconds = self.amounts.seconds
        if self.language_model:
            seconds = np.where([kind in DELAYS for kind in self.load.task_kinds], 0.0, seconds)
        quiet = Amounts(seconds, np.zeros_like(self.amounts.sizes))
        return simulate(self.load, self.network, self.placement, quiet, "fair", self.speeds)


def build_scenario(document: WorkloadDocument, iterations: int | None = None) -> Scenario:
    """The document's scenario, for another number of iterations where one is given."""
    if document.llm is not None:
        return _llm(document, document.llm, iterations)
    names = [machine.name for machine in document.machines]
    network = _network(document)
    load, placement, ratios = _gnn(document, names) if document.gnn else _loose(document, names)
    count = iterations or document.iterations or 1
    _check_size(load, count)
    placement = load.settled(placement, len(names))
    _check_resources(load, placement, document.machines)
    speeds = np.array([machine.speed for machine in document.machines])
    return Scenario(load, network, placement, _amounts(load, count, document.seed, ratios), speeds)


def _llm(document: WorkloadDocument, job: LlmDocument, iterations: int | None) -> Scenario:
    """Three steps: the time of a step shows between the first and the last of them."""
    step = build_step(job.job(document.seed))
    count = iterations or document.iterations or _STEPS
    _check_size(step.load, count)
    speeds = np.ones(len(step.network.machines))
    return Scenario(step.load, step.network, step.placement, draw_amounts(step.load, count), speeds, True)


def _check_size(load: Workload, count: int) -> None:
    if count * load.items > _MOST_ITEMS:
        raise PenstockError(
            f"{count:,} iterations of {load.items:,} tasks and flows are more than {_MOST_ITEMS:,} in all:"
            " ask for fewer with --iterations.",
            code="too-large",
        )


def _network(document: WorkloadDocument) -> Network:
    machines = document.machines
    labels = [str(machine.rack) for machine in machines]
    incoming, outgoing = zip(*(machine.rates for machine in machines), strict=True)
    tenants = [machine.background for machine in machines]
    cores = [machine.resources.get("cores", np.inf) for machine in machines]
    return racks(
        labels, incoming, outgoing, document.oversubscription, [machine.name for machine in machines],
        document.transport, [each * 1e9 / 8 for each in taken_of(tenants, "gbps")],
        {rack: gbps * 1e9 / 8 for rack, gbps in document.uplink_background_gbps.items()},
        np.subtract(cores, taken) if (taken := taken_of(tenants, "cores")) else None,
    )  # fmt: skip


def without_tenants(document: WorkloadDocument) -> WorkloadDocument:
    """The document of the same workload where no other tenants take anything."""
    machines = [machine.model_copy(update={"background": None}) for machine in document.machines]
    return document.model_copy(update={"machines": machines, "uplink_background_gbps": {}})


def _loose(document: WorkloadDocument, machines: Sequence[str]) -> tuple[Workload, Array, Array]:
    """Tasks and flows as listed in the file."""
    building = WorkloadBuilder()
    items: dict[str, Item] = {}
    for task in document.tasks:
        items.setdefault(task.name, building.task(task.name, task.kind, task.seconds, task.resources))
    tasks = dict(items)
    for flow in document.flows:
        name = flow.name or f"{flow.source}->{flow.target}"
        source, target = (_known(end, tasks, "task", f"flow {name}") for end in (flow.source, flow.target))
        item = building.flow(source, target, flow.bytes, flow.kind, name=name, coflow=flow.coflow, arrival_lag=flow.lag)
        items.setdefault(name, item)
    for wait in document.waits:
        before, after = (_known(each, items, "task or flow", "after") for each in (wait.before, wait.after))
        building.wait(before, after, wait.lag)
    places = {name: place for place, name in enumerate(machines)}
    placement = [_known(task.machine, places, "machine", f"task {task.name}") for task in document.tasks]
    ratios = [task.spread for task in document.tasks] + [flow.spread for flow in document.flows]
    return building.build(), np.array(placement, np.int32), np.array(ratios)


def _gnn(document: WorkloadDocument, machines: Sequence[str]) -> tuple[Workload, Array, Array]:
    """Jobs of GNN training; where there are several, their tasks are called JOB/TASK."""
    loads, placements, task_ratios, flow_ratios = {}, [], [], []
    for name, job in document.gnn.items():
        load = gnn_workload(GnnJob(**job.model_dump(include=_GNN_FIELDS)), name)
        loads[name] = load
        placements.append(_placed(load, job, machines, name))
        for kind in job.spread:
            _known(kind, dict.fromkeys(sorted(load.item_kinds)), "kind of task or flow", f"the spread of {name}")
        task_ratios.append(_ratios(job, load.task_kinds))
        flow_ratios.append(_ratios(job, load.flow_kinds))
    load = merge(loads) if len(loads) > 1 else next(iter(loads.values()))
    return load, np.concatenate(placements), np.concatenate([*task_ratios, *flow_ratios])


def _ratios(job: GnnDocument, kinds: Sequence[str]) -> Array:
    """The peak over the mean of every item, by its kind."""
    return np.array([job.spread.get(kind, 1.0) for kind in kinds]) if job.spread else np.ones(len(kinds))


def _placed(load: Workload, job: GnnDocument, machines: Sequence[str], name: str) -> Array:
    """A machine for every task of one job: named by task, else by kind, else by the rule."""
    places = {machine: place for place, machine in enumerate(machines)}
    where = f"the machines of {name}"
    choosable = dict.fromkeys([*load.task_names, *sorted(set(load.task_kinds))])
    named: dict[str, list[int]] = {}
    for key, given in job.machines.items():
        _known(key, choosable, "task or kind of task", where)
        listed = [given] if isinstance(given, str) else given
        if not listed:
            raise PenstockError(f"{key} has an empty list in {where}: name at least one machine.", code="missing-data")
        named[key] = [_known(each, places, "machine", where) for each in listed]
    kinds = np.array(load.task_kinds)
    # A worker's samplers follow it in the list of tasks.
    worker = np.cumsum(kinds == "worker") - 1
    out = np.empty(load.tasks, np.int32)
    for kind in sorted(set(load.task_kinds)):
        tasks = np.flatnonzero(kinds == kind)
        turns = np.arange(len(tasks))
        if kind in named:
            out[tasks] = np.array(named[kind])[turns % len(named[kind])]
        else:
            beside_worker = job.placement == "together" and kind == "sampler"
            out[tasks] = (worker[tasks] if beside_worker else turns) % len(machines)
    numbers = {name: task for task, name in enumerate(load.task_names)} if named else {}
    for key, places_of_task in named.items():
        if key in numbers:
            turn = np.count_nonzero(kinds[: numbers[key]] == kinds[numbers[key]])
            out[numbers[key]] = places_of_task[turn % len(places_of_task)]
    return out


def _amounts(load: Workload, iterations: int, seed: int, ratios: Array) -> Amounts:
    """Amounts in which every item, not every kind, has its own ratio of peak to mean."""
    out = draw_amounts(load, iterations, seed)
    for ratio in np.unique(ratios[ratios > 1]).tolist():
        # An amount depends only on the item's number, so these columns equal those of a draw for them only.
        drawn = draw_amounts(load, iterations, seed, dict.fromkeys(load.item_kinds, PeakToMean(ratio)))
        chosen = ratios == ratio
        out.seconds[:, chosen[: load.tasks]] = drawn.seconds[:, chosen[: load.tasks]]
        out.sizes[:, chosen[load.tasks :]] = drawn.sizes[:, chosen[load.tasks :]]
    return out


def _check_resources(load: Workload, placement: Array, machines: Sequence[MachineDocument]) -> None:
    for resource, held in load.resources.items():
        wanted = np.bincount(placement, weights=held, minlength=len(machines))
        for machine, amount in zip(machines, wanted.tolist(), strict=True):
            there = machine.resources.get(resource, np.inf)
            if amount > there * (1 + 1e-9):
                raise PenstockError(
                    f"{machine.name} lacks {amount - there:g} {resource}: its tasks hold {amount:g} and it has"
                    f" {there:g}; move some, or give it more.",
                    code="infeasible",
                )


def _known(name: str, known: Mapping[str, Value], what: str, where: str) -> Value:
    if name not in known:
        raise PenstockError(f"No {what} is called {name!r} (in {where}){nearest(name, known)}", code="unknown-name")
    return known[name]
