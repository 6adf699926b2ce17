"""`penstock simulate` for a trace of coflows: completion times under general coflow schedulers."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from penstock.quantities import counted, percent
from penstock.report.words import seconds
from penstock.simulate.document import TraceDocument
from penstock.simulate.traces import TRACE_POLICIES, TraceOutcome, read_trace, simulate_trace, trace_policy_named

_DEFAULT = "sebf"


def trace_fields(document: TraceDocument, folder: Path, policy: str | None, compare: bool) -> dict[str, Any]:
    """What a simulation of a trace says, for JSON; a relative file is looked for in `folder`."""
    chosen = policy or _DEFAULT
    trace_policy_named(chosen)
    trace, rate = read_trace(folder / document.file), document.port_gbps * 1e9 / 8
    found = simulate_trace(trace, chosen, rate)
    fields = _fields(found)
    if compare:
        outcomes = [found if name == chosen else simulate_trace(trace, name, rate) for name in TRACE_POLICIES]
        fields["compared"] = sorted((_row(each) for each in outcomes), key=lambda row: row["mean_cct_s"])
    return fields


def print_trace(fields: dict[str, Any], written: Path | None = None) -> None:
    """The same for people; `written` is the table of coflows, where one was asked for."""
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
    """How many coflows there are, and how long they take."""
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


def _row(found: TraceOutcome) -> dict[str, Any]:
    names = ("mean_cct_s", "p95_cct_s", "mean_slowdown", "makespan_s")
    return {"policy": found.policy} | {name: getattr(found, name) for name in names}
