"""What `penstock simulate` does with a workload, a trace of coflows or a plan: read it, run it and print it."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from penstock.errors import PenstockError
from penstock.formatting import counted, percent
from penstock.graph.document_sweep import Point, fields_of, parse_sweeps, points_of, validated_at, with_point
from penstock.graph.documents import read_yaml
from penstock.graph.files import read_document
from penstock.hardware.cluster import ClusterDocument
from penstock.report.gantt import path_by_kind, path_sentence
from penstock.report.words import seconds
from penstock.simulate import POLICIES, Timeline, critical_path, gap_of, lower_bound
from penstock.simulate.document import TraceDocument, WorkloadDocument, read_workload
from penstock.simulate.levels import Pace
from penstock.simulate.rates import COFLOW_POLICIES, FLOW_POLICIES
from penstock.simulate.scenario import Scenario, build_scenario, without_tenants
from penstock.simulate.state import PRIORITY
from penstock.simulate.timeline import bubble_fraction, coflow_times, exposed_seconds, step_seconds
from penstock.simulate.traces import TRACE_POLICIES, TraceOutcome, simulate_trace
from penstock.simulate.traces.trace import read_trace
from penstock.simulate.transport import HASHES, hashed_again

if TYPE_CHECKING:
    from penstock.plan.document import Plan


# What `penstock simulate` simulates: a workload file, a trace of coflows, or a plan, and each with other values.

_FOR_ANY = ("hermod", "slack")
"""Orders of coflows that are useful where there is no language model."""
_REPLAYED = ("nic_gbps", "speed", "rack", "oversubscription")
"""Fields of a cluster that change a plan's simulated time while its placement stays."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A scenario, the policy that it is simulated under, and the policies that it may be compared under."""

    scenario: Scenario
    policy: str
    fitting: Sequence[str]
    by: str = "makespan_s"
    """The field that policies are compared by."""
    fair_scenario: Callable[[], Scenario] | None = None
    """Of a language model whose all-to-alls are sent as matchings: the scenario with all of their flows at once."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Further fields of the JSON output: of a plan, an iteration's time in the long run and its prediction."""
    pace: Pace | None = None
    """Of a plan: an iteration's time in the long run."""
    alone: Callable[[], Scenario] | None = None
    """Where other tenants take something: the scenario without them."""


@dataclass(frozen=True)
class TraceSubject:
    """A recorded trace of coflows."""

    document: TraceDocument
    folder: Path
    policy: str | None


def subject_of(path: Path, policy: str | None, iterations: int | None) -> Subject | TraceSubject:
    """The workload, plan or trace in the file at `path`."""
    if is_plan(path):
        return _of_plan(_cluster_plan(path), policy, iterations)
    return _of_workload(read_workload(path), path.parent, policy, iterations)


def swept_simulations(
    path: Path, sweeps: Sequence[str], policy: str | None, iterations: int | None, queues: int | None
) -> Iterator[tuple[Point, Callable[[], dict[str, Any]]]]:
    """Every combination of the swept values, with a function that simulates it; all are validated before the first."""
    points = points_of(parse_sweeps(sweeps))
    if is_plan(path):
        plan = _cluster_plan(path)
        plans = [_plan_at(plan, point) for point in points]
        for point, changed in zip(points, plans, strict=True):
            yield point, partial(_swept_row, partial(_of_plan, changed, policy, iterations), queues)
        return
    raw, known = read_yaml(path, "a workload file"), fields_of(WorkloadDocument)
    documents = [validated_at(WorkloadDocument, with_point(raw, point, known), point, path) for point in points]
    for point, document in zip(points, documents, strict=True):
        yield point, partial(_swept_row, partial(_of_workload, document, path.parent, policy, iterations), queues)


def is_plan(path: Path) -> bool:
    """Whether a file is a plan; a workload file may end in .json as well."""
    if path.suffix != ".json" or not path.is_file():
        return False
    try:
        raw = json.loads(read_document(path))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(raw, dict) and raw.get("format") == "penstock-plan"


def _cluster_plan(path: Path) -> "Plan":
    from penstock.plan.document import read_plan

    plan = read_plan(path)
    if not plan.cluster:
        raise PenstockError(
            f"{path} is a plan of one machine, which has no network to simulate: carry it out with `penstock train"
            f" --plan {path}`, or plan for a cluster with `penstock plan JOB --cluster FILE`.",
            code="unsupported-combination",
        )
    if not plan.profile:
        raise PenstockError(
            f"{path} is the plan of a run, which measured no profile to simulate: carry it out with `penstock train"
            f" --plan {path}`, or plan with `penstock plan JOB --cluster FILE`.",
            code="missing-data",
        )
    return plan


def steps_of(found: Timeline, scenario: Scenario) -> dict[str, Any]:
    """The time of a step and figures of coflows, as fields of the JSON output."""
    return {
        "step_s": step_seconds(found.case, found.ends),
        "bubble_fraction": bubble_fraction(found, scenario.placement) if scenario.language_model else None,
        "exposed_communication_s": exposed_seconds(found, scenario.silent()),
        "coflows": asdict(coflow_times(found)),
    }


def fair_exchange_step(subject: Subject, queues: int | None) -> float | None:
    """Seconds of a step if all-to-alls were sent at once; None where they are not sent as matchings."""
    if subject.fair_scenario is None:
        return None
    found = subject.fair_scenario().simulate(subject.policy, queues=queues)
    return step_seconds(found.case, found.ends)


def network_fields(subject: Subject, found: Timeline, queues: int | None) -> dict[str, Any]:
    """What is due to the network below a fluid and to other tenants, as fields of the JSON output; empty without both.

    Hashes and timeouts are a matter of chance: makespans over 32 seeds have a median and a 95th percentile.
    """
    scenario, fields = subject.scenario, dict[str, Any]()

    def makespan(other: Scenario) -> float:
        return other.simulate(subject.policy, queues=queues).makespan

    if scenario.network.transport is not None:
        late = found.late[found.case.amounts.sizes > 0]
        seeds = [makespan(replace(scenario, network=each)) for each in hashed_again(scenario.network)]
        fields["transport"] = {
            "kind": scenario.network.transport.kind,
            "fluid_makespan_s": makespan(replace(scenario, network=scenario.network.as_fluid())),
            "late_flows": float(np.mean(late > 0)) if late.size else 0.0,
            "mean_late_s": float(late.mean()) if late.size else 0.0,
            "median_makespan_s": float(np.quantile(seeds, 0.5, method="higher")) if seeds else None,
            "p95_makespan_s": float(np.quantile(seeds, 0.95, method="higher")) if seeds else None,
        }
    if subject.alone is not None:
        fields["makespan_without_tenants_s"] = makespan(subject.alone())
    return fields


def _swept_row(make: Callable[[], Subject | TraceSubject], queues: int | None) -> dict[str, Any]:
    """The result of one combination of a sweep."""
    subject = make()
    if isinstance(subject, TraceSubject):
        return _trace_row(subject)
    found = subject.scenario.simulate(subject.policy, queues=queues)
    row = _policy_row(found, subject.policy, lower_bound(found.case))
    return {**row, "iteration_s": subject.fields.get("iteration_s", row["step_s"])}


def _policy_row(found: Timeline, policy: str, bound: float) -> dict[str, Any]:
    """The figures of one simulation that sweeps and comparisons show."""
    slowest = int(np.argmax(found.link_use))
    return {
        "policy": policy,
        "makespan_s": found.makespan,
        "step_s": step_seconds(found.case, found.ends),
        "lower_bound_s": bound,
        "gap": gap_of(found.makespan, bound),
        "mean_cct_s": coflow_times(found).mean_cct_s,
        "slowest_link": found.network.link_names[slowest],
        "utilisation": float(found.link_use[slowest]),
    }


def _trace_row(subject: TraceSubject) -> dict[str, Any]:
    found = trace_fields(subject.document, subject.folder, subject.policy, compare=False)
    busiest = max(found["links"], key=lambda name: found["links"][name]["utilisation"])
    gap = gap_of(found["makespan_s"], found["lower_bound_s"])
    same = {name: found[name] for name in ("policy", "makespan_s", "step_s", "lower_bound_s")}
    use = {"slowest_link": busiest, "utilisation": found["links"][busiest]["utilisation"]}
    return {**same, "gap": gap, "mean_cct_s": found["coflows"]["mean_cct_s"], **use}


def _of_workload(
    document: WorkloadDocument, folder: Path, policy: str | None, iterations: int | None
) -> Subject | TraceSubject:
    if document.trace is not None:
        return TraceSubject(document.trace, folder, policy)
    if document.llm is not None:
        fair = _with_fair_exchange(document, iterations)
        scenario = build_scenario(document, iterations)
        return Subject(scenario, POLICIES[policy or "slack"].name, COFLOW_POLICIES, "step_s", fair)
    chosen = POLICIES[policy or "oes"].name
    shared = bool(document.uplink_background_gbps) or any(machine.background for machine in document.machines)
    alone = partial(build_scenario, without_tenants(document), iterations) if shared else None
    return Subject(build_scenario(document, iterations), chosen, (*FLOW_POLICIES, *_FOR_ANY), alone=alone)


def _with_fair_exchange(document: WorkloadDocument, iterations: int | None) -> Callable[[], Scenario] | None:
    from penstock.simulate.llm.job import ExpertExchange

    if document.llm is None or document.llm.all_to_all.schedule == "fair":
        return None
    kept = document.llm.all_to_all.model_dump(exclude={"schedule", "detail"})
    fair = document.llm.model_copy(update={"all_to_all": ExpertExchange(schedule="fair", **kept)})
    return partial(build_scenario, document.model_copy(update={"llm": fair}), iterations)


def _of_plan(plan: "Plan", policy: str | None, iterations: int | None) -> Subject:
    from penstock.plan.planner import replay

    chosen = policy or plan.flows
    found = replay(plan, chosen, iterations)
    fields = {"iteration_s": found.pace.iteration_s, "predicted": {"flows": plan.flows, **plan.predicted_seconds}}
    return Subject(found.scenario, chosen, (*FLOW_POLICIES, *_FOR_ANY), fields=fields, pace=found.pace)


def _plan_at(plan: "Plan", point: Point) -> "Plan":
    """The plan on a cluster with other values; its placement stays."""
    known = [path for path in fields_of(ClusterDocument) if path[-1].name in _REPLAYED]
    changed = with_point(plan.cluster, point, known)
    validated_at(ClusterDocument, changed, point, "the cluster")
    return plan.model_copy(update={"cluster": changed})


# `penstock simulate` for a trace of coflows: completion times under general coflow schedulers.

_DEFAULT = "sebf"


def trace_fields(document: TraceDocument, folder: Path, policy: str | None, compare: bool) -> dict[str, Any]:
    """The fields of a trace's simulation for JSON; a relative path is resolved in `folder`."""
    chosen = policy or _DEFAULT
    TRACE_POLICIES[chosen]
    trace, rate = read_trace(folder / document.file), document.port_gbps * 1e9 / 8
    found = simulate_trace(trace, chosen, rate)
    fields = _fields(found)
    if compare:
        outcomes = [found if name == chosen else simulate_trace(trace, name, rate) for name in TRACE_POLICIES]
        fields["compared"] = sorted((_row_of_outcome(each) for each in outcomes), key=lambda row: row["mean_cct_s"])
    return fields


def print_trace(fields: dict[str, Any], written: Path | None = None) -> None:
    """Print the fields for people; `written` is the table of coflows, where one was written."""
    coflows = fields["coflows"]
    print(f"{fields['policy']}: {coflow_sentence(coflows)}")
    print(f"All are through after {seconds(fields['makespan_s'])}; no schedule takes less than "
          f"{seconds(fields['lower_bound_s'])}")  # fmt: skip
    print(f"Simulated {counted(fields['events'], 'events')} in {seconds(fields['seconds'])}")
    if "compared" in fields:
        table = Table(Column("policy", no_wrap=True), "mean coflow", "95 of 100 within", "times alone", "all")
        for row in fields["compared"]:
            times = [seconds(row[name]) for name in ("mean_cct_s", "p95_cct_s")]
            bold = "bold" if row["policy"] == fields["policy"] else None
            table.add_row(row["policy"], *times, f"{row['mean_slowdown']:.2f}", seconds(row["makespan_s"]), style=bold)
        Console().print(table)
    busiest = max(fields["links"], key=lambda name: fields["links"][name]["utilisation"])
    print(f"Busiest port: {busiest} {percent(fields['links'][busiest]['utilisation'])}")
    if written is not None:
        print(f"Written to {written}")


def coflow_sentence(coflows: dict[str, Any]) -> str:
    """One sentence on the number of coflows and their completion times."""
    take = "takes" if coflows["count"] == 1 else "take"
    mean, late = seconds(coflows["mean_cct_s"]), seconds(coflows["p95_cct_s"])
    return f"{counted(coflows['count'], 'coflows')} {take} {mean} on average; 95 of 100 at most {late}"


def _fields(found: TraceOutcome) -> dict[str, Any]:
    sides = (("in", found.ingress_use), ("out", found.egress_use))
    return {
        "policy": found.policy,
        "makespan_s": found.makespan_s,
        "lower_bound_s": found.makespan_bound_s,
        "events": found.events,
        "seconds": found.seconds,
        "links": {
            f"port {port} {side}": {"utilisation": float(share)}
            for side, use in sides
            for port, share in enumerate(use)
        },
        "critical_path": [],
        "step_s": None,
        "bubble_fraction": None,
        "exposed_communication_s": None,
        "coflows": found.summary()["coflows"],
        "mean_slowdown": found.mean_slowdown,
        "coflow_times": found.rows(),
    }


def _row_of_outcome(found: TraceOutcome) -> dict[str, Any]:
    names = ("mean_cct_s", "p95_cct_s", "mean_slowdown", "makespan_s")
    return {"policy": found.policy} | {name: getattr(found, name) for name in names}


# What `penstock simulate` prints: fields for JSON, sentences and tables for people.

_BUSIEST = 3
"""The most links that are named."""


def compared_policies(
    scenario: Scenario, bound: float, policies: Sequence[str], queues: int | None, by: str
) -> list[dict[str, Any]]:
    """A row for every policy, the one with the least value of `by` first."""
    rows: list[dict[str, Any]] = []
    for policy in policies:
        found = scenario.simulate(policy, queues=queues if POLICIES[policy].family == PRIORITY else None)
        rows.append(_policy_row(found, policy, bound))
    rows.sort(key=lambda row: row[by])
    best = rows[0][by]
    return [{**row, "ratio": row[by] / best if best else 1.0} for row in rows]


def simulation_fields(found: Timeline, policy: str, bound: float) -> dict[str, Any]:
    use = zip(found.network.link_names, found.link_use.tolist(), strict=True)
    return {
        "policy": policy,
        "iterations": found.iterations,
        "makespan_s": found.makespan,
        "lower_bound_s": bound,
        "events": found.events,
        "seconds": found.seconds,
        "links": {name: {"utilisation": share} for name, share in use},
        "critical_path": [step._asdict() for step in critical_path(found)],
    }


def print_simulation(found: Timeline, policy: str, bound: float) -> None:
    each = f" ({seconds(found.makespan / found.iterations)} each)" if found.iterations > 1 else ""
    count = counted(found.iterations, "iterations")
    print(f"{policy}: {count} in {seconds(found.makespan)}{each}")
    print(f"No schedule takes less than {seconds(bound)}: a gap of {percent(gap_of(found.makespan, bound))}")
    order = [link for link in np.argsort(-found.link_use, kind="stable").tolist() if found.link_use[link] > 0]
    busiest = (f"{found.network.link_names[link]} {percent(found.link_use[link])}" for link in order[:_BUSIEST])
    print(f"Busiest links: {', '.join(busiest) or 'nothing crosses one'}")
    print(f"Critical path: {path_sentence(path_by_kind(critical_path(found)))}")
    print(f"Simulated {counted(found.events, 'events')} in {seconds(found.seconds)}")


def print_network(fields: dict[str, Any], makespan: float) -> None:
    """Print what `network_fields` found beside the makespan of the simulation."""
    if "transport" in fields:
        found = fields["transport"]
        fluid, share = found["fluid_makespan_s"], percent(found["late_flows"])
        print(
            f"As a fluid it takes {seconds(fluid)}: {found['kind']} and its links add {percent(makespan / fluid - 1)};"
            f" {share} of flows are later, the mean of all by {seconds(found['mean_late_s'])}"
            if fluid
            else f"{share} of flows are later than as a fluid"
        )
        if found["median_makespan_s"] is not None:
            median, late = seconds(found["median_makespan_s"]), seconds(found["p95_makespan_s"])
            print(f"Over {HASHES} seeds of hashes and timeouts: {median} in the median, 95 of 100 at most {late}")
    if "makespan_without_tenants_s" in fields:
        print(f"Without other tenants it takes {seconds(fields['makespan_without_tenants_s'])}")


def print_steps(steps: dict[str, Any]) -> None:
    exposed = f"{seconds(steps['exposed_communication_s'])} of it is communication that nothing hides"
    print(f"A step takes {seconds(steps['step_s'])}; {exposed}")
    if steps["bubble_fraction"] is not None:
        print(f"Devices compute {percent(1 / (1 + steps['bubble_fraction']))} of the time")
    fair = steps["fair_all_to_all_step_s"]
    if fair is not None and steps["step_s"] > fair:
        longer = percent(steps["step_s"] / fair - 1)
        print(
            f"Note: these matchings make a step {longer} longer than `schedule: fair` would ({seconds(fair)}):"
            " their phases' overhead costs more than they save"
        )
    coflows = steps["coflows"]
    if coflows["count"]:
        print(coflow_sentence(coflows))


def print_policies(compared: list[dict[str, Any]], policy: str) -> None:
    columns = ("step", "to the best", "makespan", "gap", "mean coflow", "slowest link", "used")
    table = Table(Column("policy", no_wrap=True), *columns)
    for row in compared:
        table.add_row(
            row["policy"],
            seconds(row["step_s"]),
            f"{row['ratio']:.3f}",
            seconds(row["makespan_s"]),
            percent(row["gap"]),
            seconds(row["mean_cct_s"]),
            row["slowest_link"],
            percent(row["utilisation"]),
            style="bold" if row["policy"] == policy else None,
        )
    Console().print(table)
