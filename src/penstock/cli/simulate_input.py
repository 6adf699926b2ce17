"""What `penstock simulate` simulates: a workload file, a trace of coflows, or a plan, and each with other values."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.graph.document_sweep import Point, fields_of, parse_sweeps, points_of, said, with_point
from penstock.graph.input_files import read_document

if TYPE_CHECKING:
    from penstock.plan.document import Plan
    from penstock.simulate.bound import Pace
    from penstock.simulate.document import TraceDocument, WorkloadDocument
    from penstock.simulate.rates import RatePolicy
    from penstock.simulate.scenario import Scenario
    from penstock.simulate.timeline import Timeline

_FOR_ANY = ("hermod", "slack")
"""Orders of coflows that say something where there is no language model."""
_REPLAYED = ("nic_gbps", "speed", "rack", "oversubscription")
"""Fields of a cluster that change what a plan's run takes with its tasks where they are."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A scenario with the policy it is simulated under and those it may be compared under."""

    scenario: "Scenario"
    policy: str
    fitting: "Mapping[str, RatePolicy]"
    by: str = "makespan_s"
    """What policies are compared by."""
    fair_scenario: "Callable[[], Scenario] | None" = None
    """Of a language model whose all-to-alls are sent as matchings: the same with all of their flows at once."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Further fields of the answer: of a plan, what an iteration takes in the long run and what it predicted."""
    pace: "Pace | None" = None
    """Of a plan: what an iteration takes in the long run."""


@dataclass(frozen=True)
class TraceSubject:
    """A recorded trace of coflows."""

    document: "TraceDocument"
    folder: Path
    policy: str | None


def subject_of(path: Path, policy: str | None, iterations: int | None) -> Subject | TraceSubject:
    """What the file at `path` describes."""
    if is_plan(path):
        from penstock.plan.document import read_plan

        return _of_plan(read_plan(path), policy, iterations)
    from penstock.simulate.document import read_workload

    return _of_workload(read_workload(path), path.parent, policy, iterations)


def swept_simulations(
    path: Path, sweeps: Sequence[str], policy: str | None, iterations: int | None, queues: int | None
) -> Iterator[tuple[Point, Callable[[], dict[str, Any]]]]:
    """Every combination of the swept values, and what simulates the file with it; all are checked before the first."""
    points = points_of(parse_sweeps(sweeps))
    if is_plan(path):
        from penstock.plan.document import read_plan

        plan = read_plan(path)
        plans = [_plan_at(plan, point) for point in points]
        for point, changed in zip(points, plans, strict=True):
            yield point, partial(_swept_plan, changed, policy, iterations, queues)
        return
    from penstock.graph.documents import read_yaml
    from penstock.simulate.document import WorkloadDocument

    raw, known = read_yaml(path, "a workload file"), fields_of(WorkloadDocument)
    documents = [_workload_at(with_point(raw, point, known), path, point) for point in points]
    for point, document in zip(points, documents, strict=True):
        yield point, partial(_swept_workload, document, path.parent, policy, iterations, queues)


def is_plan(path: Path) -> bool:
    """Whether a file is a plan; a workload file may end in .json as well."""
    if path.suffix != ".json" or not path.is_file():
        return False
    try:
        raw = json.loads(read_document(path))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(raw, dict) and raw.get("format") == "penstock-plan"


def steps_of(found: "Timeline", scenario: "Scenario") -> dict[str, Any]:
    """What a step takes, and what coflows do."""
    from penstock.simulate.coflows import coflow_times
    from penstock.simulate.timeline import bubble_fraction, exposed_seconds, step_seconds

    return {
        "step_s": step_seconds(found.case, found.ends),
        "bubble_fraction": bubble_fraction(found, scenario.placement) if scenario.language_model else None,
        "exposed_communication_s": exposed_seconds(found, scenario.silent()),
        "coflows": asdict(coflow_times(found)),
    }


def fair_exchange_step(subject: Subject, queues: int | None) -> float | None:
    """What a step would take if all-to-alls were sent all at once, where they are sent as matchings."""
    from penstock.simulate.timeline import step_seconds

    if subject.fair_scenario is None:
        return None
    found = subject.fair_scenario().simulate(subject.policy, queues=queues)
    return step_seconds(found.case, found.ends)


def _swept_plan(plan: "Plan", policy: str | None, iterations: int | None, queues: int | None) -> dict[str, Any]:
    return _row(_of_plan(plan, policy, iterations), queues)


def _swept_workload(
    document: "WorkloadDocument", folder: Path, policy: str | None, iterations: int | None, queues: int | None
) -> dict[str, Any]:
    subject = _of_workload(document, folder, policy, iterations)
    return _trace_row(subject) if isinstance(subject, TraceSubject) else _row(subject, queues)


def _row(subject: Subject, queues: int | None) -> dict[str, Any]:
    """One combination of a sweep, simulated."""
    import numpy as np

    from penstock.simulate import gap_of, lower_bound
    from penstock.simulate.coflows import coflow_times
    from penstock.simulate.timeline import step_seconds

    found = subject.scenario.simulate(subject.policy, queues=queues)
    bound = lower_bound(found.case)
    slowest = int(np.argmax(found.link_use))
    step = step_seconds(found.case, found.ends)
    return {
        "policy": subject.policy,
        "makespan_s": found.makespan,
        "step_s": step,
        "iteration_s": subject.fields.get("iteration_s", step),
        "lower_bound_s": bound,
        "gap": gap_of(found.makespan, bound),
        "mean_cct_s": coflow_times(found).mean_cct_s,
        "slowest_link": found.network.link_names[slowest],
        "utilisation": float(found.link_use[slowest]),
    }


def _trace_row(subject: TraceSubject) -> dict[str, Any]:
    from penstock.cli.simulate_trace import trace_fields
    from penstock.simulate import gap_of

    found = trace_fields(subject.document, subject.folder, subject.policy, compare=False)
    busiest = max(found["links"], key=lambda name: found["links"][name]["utilisation"])
    gap = gap_of(found["makespan_s"], found["lower_bound_s"])
    same = {name: found[name] for name in ("policy", "makespan_s", "step_s", "lower_bound_s")}
    use = {"slowest_link": busiest, "utilisation": found["links"][busiest]["utilisation"]}
    return {**same, "gap": gap, "mean_cct_s": found["coflows"]["mean_cct_s"], **use}


def _of_workload(
    document: "WorkloadDocument", folder: Path, policy: str | None, iterations: int | None
) -> Subject | TraceSubject:
    from penstock.simulate.rates import COFLOW_POLICIES, FLOW_POLICIES
    from penstock.simulate.scenario import build_scenario

    if document.trace is not None:
        return TraceSubject(document.trace, folder, policy)
    if document.llm is not None:
        fair = _with_fair_exchange(document, iterations)
        scenario = build_scenario(document, iterations)
        return Subject(scenario, _known(policy, "slack"), COFLOW_POLICIES, "step_s", fair)
    fitting = {**FLOW_POLICIES, **{name: COFLOW_POLICIES[name] for name in _FOR_ANY}}
    return Subject(build_scenario(document, iterations), _known(policy, "oes"), fitting)


def _with_fair_exchange(document: "WorkloadDocument", iterations: int | None) -> "Callable[[], Scenario] | None":
    from penstock.simulate.llm.document import ExchangeDocument
    from penstock.simulate.scenario import build_scenario

    if document.llm is None or document.llm.all_to_all.schedule == "fair":
        return None
    kept = document.llm.all_to_all.model_dump(exclude={"schedule", "detail"})
    fair = document.llm.model_copy(update={"all_to_all": ExchangeDocument(schedule="fair", **kept)})
    return partial(build_scenario, document.model_copy(update={"llm": fair}), iterations)


def _known(policy: str | None, default: str) -> str:
    from penstock.simulate import policy_named

    return policy_named(policy or default).name


def _of_plan(plan: "Plan", policy: str | None, iterations: int | None) -> Subject:
    from penstock.plan.replay import replay
    from penstock.simulate.rates import COFLOW_POLICIES, FLOW_POLICIES

    chosen = policy or plan.flows
    found = replay(plan, chosen, iterations)
    predicted = plan.predicted.model_dump(include={"iteration_s", "epoch_s", "lower_bound_s"})
    fields = {"iteration_s": found.pace.iteration_s, "predicted": {"flows": plan.flows, **predicted}}
    fitting = {**FLOW_POLICIES, **{name: COFLOW_POLICIES[name] for name in _FOR_ANY}}
    return Subject(found.scenario, chosen, fitting, fields=fields, pace=found.pace)


def _plan_at(plan: "Plan", point: Point) -> "Plan":
    """The plan on a cluster with other values: its placement stays as it is."""
    from pydantic import ValidationError

    from penstock.graph.documents import first_problem
    from penstock.hardware.cluster import ClusterDocument

    known = [path for path in fields_of(ClusterDocument) if path[-1].name in _REPLAYED]
    changed = with_point(plan.cluster, point, known)
    try:
        ClusterDocument.model_validate(changed)
    except ValidationError as error:
        raise PenstockError(
            f"With {said(point)} the cluster is not valid: {first_problem(error)}.", code="invalid-document"
        ) from None
    return plan.model_copy(update={"cluster": changed})


def _workload_at(raw: dict[str, Any], path: Path, point: Point) -> "WorkloadDocument":
    from pydantic import ValidationError

    from penstock.graph.documents import first_problem
    from penstock.simulate.document import WorkloadDocument

    try:
        return WorkloadDocument.model_validate(raw)
    except ValidationError as error:
        raise PenstockError(
            f"With {said(point)} {path} is not valid: {first_problem(error)}.", code="invalid-document"
        ) from None
