"""The plan: which task runs where, how flows share links, and what that is predicted to take."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from penstock.cost.profile import MeasuredMachine
from penstock.errors import PenstockError
from penstock.formatting import html_table
from penstock.graph.documents import StrictDocument, read_product, validated
from penstock.graph.files import write_whole
from penstock.simulate.rates import POLICIES

FORMAT, VERSION = "penstock-plan", 2

Egress = Literal["fair", "fifo", "turns", "coflow"]
CARRIED_OUT: dict[str, Egress] = {
    "fair": "fair",
    "oes": "fair",
    "fifo": "fifo",
    "iteration-first": "turns",
    "hermod": "coflow",
}
"""Flow policies that a run can carry out, and the egress policy of its processes for each."""


class PlannedTask(StrictDocument):
    """One process of the run; its kind is defined by the execution mode."""

    id: str
    kind: str
    machine: str
    cores: float = 0.0
    memory_gb: float = 0.0
    gpus: float = 0.0


class PlannedFlows(StrictDocument):
    """All flows of one kind in one iteration; the kind is defined by the execution mode."""

    kind: str
    count: int = Field(description="flows between two tasks")
    bytes: float
    link_bytes: float = Field(description="of these, what crosses links, as the tasks are placed")


class Predicted(StrictDocument):
    """The prediction for the run; seconds, bytes and shares are those of one iteration."""

    iteration_s: float
    epoch_s: float
    epoch_p95_s: float | None = Field(
        default=None, description="95 of 100 epochs take less, by how much steps and flows vary; none: not known"
    )
    lower_bound_s: float = Field(
        default=0.0,
        description="no placement and no flow policy takes less in the long run: what links must carry, a store's work,"
        " or the slowest cycle of tasks",
    )
    placement_bound_s: float = Field(default=0.0, description="the same for the placement that was chosen")
    run_s: float | None = Field(
        default=None, description="of a whole run, with its start and validations; none: not predicted"
    )
    link_bytes: dict[str, float] = Field(default={})
    link_utilisation: dict[str, float] = Field(default={})
    memory_gb: dict[str, float] = Field(default={}, description="the most that is held at any time, by machine")
    device_memory_gb: dict[str, dict[str, float]] = Field(
        default={}, description="the same of other kinds of devices, by kind and machine, where it is known"
    )


class Compared(StrictDocument):
    """One placement and flow policy that was compared."""

    placement: str
    flows: str
    iteration_s: float
    epoch_s: float
    lower_bound_s: float = Field(description="of this placement under any flow policy, for each iteration")
    gap: float = Field(description="how far above its lower bound it is, as a share of it")
    slowest_link: str
    slowest_link_bytes: float


class Effort(StrictDocument):
    """How much a search simulated, and how long it took."""

    steps: int
    seconds: float
    simulated: int
    simulations: int = Field(default=0, description="how many placements each search was allowed to simulate")
    searched_iterations: int = Field(default=0, description="simulated for each placement that a search looked at")
    judged_iterations: int = Field(default=0, description="simulated for each placement that was compared")
    reads_in_turns: int = Field(
        default=1, description="iterations over which a batch's reads from all far parts were spread; 1: not at all"
    )
    threads: int = 1


class Change(StrictDocument):
    """A change of hardware or settings, and its gain."""

    what: str
    iteration_s: float
    gain: float = Field(description="share of the iteration that it would save; below 0: it would take longer")
    feature_bytes: float | None = Field(
        default=None, description="bytes of features over links in an iteration, where the change is of what is sent"
    )


class Plan(StrictDocument):
    """Everything a run needs beside the graph; see docs/planning.md."""

    format: Literal["penstock-plan"] = "penstock-plan"
    version: Literal[2] = 2
    job: dict[str, Any]
    cluster: dict[str, Any] = Field(default={}, description="the cluster's document; empty: one machine")
    execution: dict[str, Any] = Field(
        description="`mode`, and how a run in that mode is set up; of one machine, what was decided by name"
    )
    reasons: dict[str, str] = Field(default={}, description="why it was decided so, by name in `execution`")
    given: list[str] = Field(
        default=[],
        description="what its run was given as objects of Python, so that the plan alone does not carry it out",
    )
    placement: str
    flows: str = Field(description="the policy by which flows share links")
    tasks: list[PlannedTask]
    traffic: list[PlannedFlows] = Field(default=[], description="what tasks send each other, by kind")
    predicted: Predicted | None = Field(default=None, description="none: a run wrote the plan and predicted nothing")
    bottleneck: str = ""
    compared: list[Compared] = Field(default=[])
    changes: list[Change] = Field(default=[], description="what could be bought or set, and what it would bring")
    advice: str = Field(default="", description="which ways to send fewer bytes would help; empty: links do not limit")
    slow: list[Change] = Field(default=[], description="what the plan takes with slow machines, as they were asked for")
    network: list[Change] = Field(
        default=[], description="what the plan takes as a fluid, over other hashes, and without other tenants"
    )
    search: Effort = Field(default=Effort(steps=0, seconds=0.0, simulated=0))
    profile: dict[str, Any] = Field(
        default={},
        description="what an iteration costs: with it `penstock simulate` can replay the plan; of one machine, the"
        " machine whose operators were measured; empty: a run on a cluster wrote the plan and measured nothing",
    )
    seed: int = Field(default=0, description="of the amounts that vary between iterations")
    scaled_from: dict[str, int] | None = Field(
        default=None, description="parts and workers that the profile was measured with, if it was scaled from there"
    )
    notes: list[str] = Field(default=[], description="what to know of the prediction")

    @property
    def facts(self) -> dict[str, Any]:
        """The prediction as a run's result reports it, beside what happened."""
        flows = {"flows": self.flows} if self.cluster else {}
        return {"placement": self.placement, **flows, **self.predicted_seconds}

    @property
    def predicted_seconds(self) -> dict[str, float]:
        """The predicted seconds of an iteration and of an epoch, and the least in the long run; empty without them."""
        if self.predicted is None:
            return {}
        return self.predicted.model_dump(
            include={"iteration_s", "epoch_s", "lower_bound_s", "run_s"}, exclude_none=True
        )

    def beside(self, done: Mapping[str, Any]) -> dict[str, Any]:
        """The prediction, and each decision beside what was `done` by its name, as a run's result reports them."""
        planned = {**({"tasks": self.machine_of(), "flows": self.flows} if self.cluster else {}), **self.execution}
        decisions = {
            name: {"planned": value, "carried_out": done[name], "why": self.reasons.get(name, "")}
            for name, value in planned.items()
            if name in done
        }
        return {"predicted": self.facts, "decisions": decisions}

    def machine_of(self) -> dict[str, str]:
        """The machine of every task, by its name."""
        return {task.id: task.machine for task in self.tasks}

    def _repr_html_(self) -> str:
        tasks = [(task.id, task.machine) for task in self.tasks]
        facts = [("bottleneck", self.bottleneck), ("placement", self.placement), ("flows", self.flows)]
        return html_table("Plan", [*facts, *tasks])

    @property
    def egress(self) -> Egress:
        """The egress policy of the run's processes."""
        if POLICIES[self.flows].name not in CARRIED_OUT:
            can = ", ".join(CARRIED_OUT)
            raise PenstockError(
                f"The plan's flow policy {self.flows} can be simulated, but no run can use it: plan with one of {can}.",
                code="unsupported-combination",
            )
        return CARRIED_OUT[self.flows]


def one_machine_plan(
    job: dict[str, Any],
    execution: dict[str, Any],
    reasons: dict[str, str],
    placement: str,
    machine: tuple[str, MeasuredMachine],
    **found: Any,
) -> Plan:
    """The plan of a job on one machine, of a name and with what was measured there: what `penstock plan --execution`
    chooses, or what a run has decided by itself; `found` are further fields of the plan.
    """
    name, measured = machine
    gpus = float(execution["device"] == "cuda")
    return Plan(
        job=job,
        execution={"mode": "one-machine", **execution},
        reasons=reasons,
        placement=placement,
        flows="fair",
        tasks=[PlannedTask(id="worker-0", kind="worker", machine=name, cores=measured.cores, gpus=gpus)],
        profile=measured.model_dump(mode="json"),
        **found,
    )


def egress_flows(egress: str) -> str:
    """The flow policy that an egress policy carries out; its own name where there is none."""
    return next((flows for flows, carried_out in CARRIED_OUT.items() if carried_out == egress), egress)


def read_plan(path: Path) -> Plan:
    """Read and validate a plan."""
    return read_product(path, Plan, FORMAT, VERSION, "plan", "plan JOB --cluster FILE")


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan, readable for people and for `penstock train --plan`."""
    write_whole(path, plan_text(plan))


def plan_text(plan: Plan) -> str:
    """The content of a plan's file."""
    return validated(Plan, plan.model_dump(), "The plan is not valid").model_dump_json(indent=1) + "\n"
