"""`penstock plan --execution`: how one machine executes a job's batches, and what that is predicted to take."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from penstock.cli.output import print_json
from penstock.errors import PenstockError
from penstock.quantities import counted, parsed_bytes, percent
from penstock.terminal_progress import importing, shown_progress

if TYPE_CHECKING:
    from penstock.plan.execution import Alternative
    from penstock.train.execution_plan import PlannedExecution
    from penstock.train.job import Job

_SHOWN = 12
"""Alternatives that are printed; --json has all of them."""


def refuse_with_execution(**given: object) -> None:
    """Refuse flags that are for plans of clusters."""
    for name, value in given.items():
        if value:
            raise PenstockError(
                f"--{name} is for plans of clusters: leave it out with --execution.", code="unsupported-combination"
            )


def show_execution_plan(job: "Job", profile: Path | None, device_memory: str | None, as_json: bool) -> None:
    """Plan a job's execution and print it."""
    size = None if device_memory is None else parsed_bytes(device_memory, "--device-memory")
    with shown_progress(as_json, "Planning the execution on one machine.") as progress:
        with importing(progress, "torch"):
            from penstock.cost.model import CostModel
            from penstock.cost.profile import read_profile
            from penstock.train.execution_plan import plan_execution
        model = None if profile is None else CostModel(read_profile(profile))
        found = plan_execution(job, model=model, device_memory=size)
    if as_json:
        print_json({"notes": progress.notes, **execution_fields(found)})
    else:
        _print(found)


def execution_fields(found: "PlannedExecution") -> dict[str, Any]:
    """The plan as a document."""
    return {
        "machine": found.machine.model_dump(mode="json"),
        "batches": found.kind.batches,
        "chosen": _row(found.plan.chosen, found.kind.batches),
        "alternatives": [_row(each, found.kind.batches) for each in found.plan.alternatives],
        "not_predicted": found.plan.unknown,
        "seconds": found.seconds,
    }


def _row(each: "Alternative", batches: int) -> dict[str, Any]:
    from penstock.train.execution_plan import fields_of

    choice, predicted = each.choice, each.predicted
    return {
        "device": choice.device,
        "sampled_by": choice.sampled_by,
        "features": choice.features,
        "cache_rows": choice.cache_rows,
        "first_layer": choice.first_layer,
        "order": list(choice.order),
        "sample_threads": choice.sample_threads,
        "groups": choice.groups,
        "batch_s": predicted.seconds,
        "epoch_s": predicted.seconds * batches,
        "use": predicted.use,
        "limit": predicted.limit,
        "fields": fields_of(choice),
    }


def _print(found: "PlannedExecution") -> None:
    # Where nobody looks, no width limits the table.
    console = Console(width=None if sys.stdout.isatty() else 140)
    columns = (
        "computed by",
        "drawn by",
        "features",
        "first layer",
        "order",
        "groups",
        "ms",
        "epoch s",
        "limit",
        "busy",
    )
    table, plan = Table(*columns, box=None), found.plan
    for place, each in enumerate(plan.alternatives[:_SHOWN]):
        choice, predicted = each.choice, each.predicted
        drawn = f"{choice.sample_threads} threads" if choice.sampled_by == "cpu" and choice.groups == 1 else ""
        cached = f", {choice.cache_rows:,} cached" if choice.cache_rows else ""
        table.add_row(
            choice.device,
            f"{choice.sampled_by} {drawn}".strip(),
            f"{choice.features}{cached}",
            choice.first_layer,
            " ".join(choice.order),
            str(choice.groups),
            f"{predicted.seconds * 1e3:.4g}",
            f"{predicted.seconds * found.kind.batches:.4g}",
            predicted.limit,
            percent(predicted.use[predicted.limit]),
            style="bold" if place == 0 else None,
        )
    console.print(table)
    if len(plan.alternatives) > _SHOWN:
        print(f"{len(plan.alternatives) - _SHOWN} slower alternatives are in --json.")
    for sentence in plan.unknown:
        print(f"Not predicted: {sentence}")
    fields = _row(plan.chosen, found.kind.batches)["fields"]
    print(f"Chosen: {', '.join(f'{name}: {_said(value)}' for name, value in fields.items())}")
    limit, share = plan.chosen.predicted.limit, plan.chosen.predicted.use[plan.chosen.predicted.limit]
    machine = found.machine
    print(f"The limit is {limit}, busy {percent(share)} of the time.")
    print(
        f"Predicted for {machine.processor}, {counted(machine.cores, 'cores')}; GPU: {machine.gpu or 'none'}, in"
        f" {found.seconds:.1f} s"
    )


def _said(value: Any) -> str:
    """As a job file has it."""
    return f"[{', '.join(value)}]" if isinstance(value, list) else str(value).replace("'", "")
