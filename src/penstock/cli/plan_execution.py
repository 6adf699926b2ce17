"""`penstock plan --execution`: how machines execute a job's batches, and what that is predicted to take."""

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
    from penstock.cost.machine_model import KnownMachine
    from penstock.cost.model import Extrapolation
    from penstock.plan.execution import Alternative
    from penstock.train.execution_plan import PlannedExecution
    from penstock.train.job import Job

    Planned = PlannedExecution | PenstockError

_SHOWN = 12
"""Alternatives that are printed; --json has all of them."""
_MOSTLY = 0.5
"""A resource that is busy for less of the time does not limit: what batches take between their operators does."""
_SAID = 3
"""Sizes outside of what was measured that are printed."""


def refuse_with_execution(**given: object) -> None:
    """Refuse flags that are for plans of clusters."""
    for name, value in given.items():
        if value:
            raise PenstockError(
                f"--{name} is for plans of clusters: leave it out with --execution.", code="unsupported-combination"
            )


def show_execution_plan(job: "Job", machines: str, device_memory: str | None, as_json: bool) -> None:
    """Plan a job's execution and print it: all alternatives of one machine, or the best one of each of several."""
    size = None if device_memory is None else parsed_bytes(device_memory, "--device-memory")
    with shown_progress(as_json, "Planning the execution on one machine.") as progress:
        with importing(progress, "torch"):
            from penstock.cost.machine_model import known_machines
            from penstock.train.execution_plan import plan_executions
        known = known_machines(machines)
        if size is not None and not any(each.model.machine.gpu for each in known):
            raise PenstockError(
                "--device-memory is the memory of a GPU, and no machine of this plan has one: name a machine that has"
                " with --machine, such as h200.",
                code="unsupported-combination",
            )
        pairs = [(each.model, each.device_memory if size is None else size) for each in known]
        found = list(plan_executions(job, pairs))
    if len(found) == 1:
        if isinstance(found[0], PenstockError):
            raise found[0]
        _show_one(known[0], found[0], progress.notes, as_json)
    else:
        _show_several(known, found, progress.notes, as_json)


def _show_one(known: "KnownMachine", found: "PlannedExecution", notes: list[str], as_json: bool) -> None:
    if as_json:
        print_json({"notes": notes, **execution_fields(known, found)})
    else:
        _print(known, found)


def _show_several(known: list["KnownMachine"], found: list["Planned"], notes: list[str], as_json: bool) -> None:
    if all(isinstance(each, PenstockError) for each in found):
        raise next(each for each in found if isinstance(each, PenstockError))
    if as_json:
        print_json({"notes": notes, "machines": [_machine_fields(*each) for each in zip(known, found, strict=True)]})
    else:
        _compare(known, found)


def execution_fields(known: "KnownMachine", found: "PlannedExecution") -> dict[str, Any]:
    """The plan of one machine as a document."""
    return {
        **_machine_fields(known, found),
        "alternatives": [_row(each, found.kind.batches) for each in found.plan.alternatives],
        "not_predicted": found.plan.unknown,
        "seconds": found.seconds,
    }


def _machine_fields(known: "KnownMachine", found: "Planned") -> dict[str, Any]:
    """What a machine's plan comes to; a machine that cannot execute the job has the reason."""
    about = {
        "name": known.name,
        "machine": known.model.machine.model_dump(mode="json"),
        "estimated": known.estimated,
        "basis": known.basis,
        "ratios": known.ratios,
    }
    if isinstance(found, PenstockError):
        return {**about, "refused": str(found)}
    return {
        **about,
        "batches": found.kind.batches,
        "chosen": _row(found.plan.chosen, found.kind.batches),
        "device_memory": None if found.room is None else found.room._asdict(),
        "outside": [each._asdict() for each in found.outside],
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


def _compare(known: list["KnownMachine"], found: list["Planned"]) -> None:
    """One line for each machine."""
    columns = ("machine", "processor", "epoch s", "batch ms", "limit", "GPU memory", "best execution", "figures")
    table = Table(*columns, box=None)
    epochs = [each.epoch_s for each in found if not isinstance(each, PenstockError)]
    for machine, each in zip(known, found, strict=True):
        name, title = Path(machine.name).name, machine.model.machine.gpu or f"{machine.model.machine.cores} cores"
        basis = machine.basis.partition(":")[0] if machine.ratios is None else _ratios(machine.ratios)
        if isinstance(each, PenstockError):
            table.add_row(name, title, "", "", "", "", "not possible", basis)
            continue
        choice, predicted = each.plan.chosen.choice, each.plan.chosen.predicted
        share = predicted.use[predicted.limit]
        limit = f"{predicted.limit} {percent(share)}" if share >= _MOSTLY else "between operators"
        style = "bold" if each.epoch_s == min(epochs) else None
        batch = f"{predicted.seconds * 1e3:.3g}"
        table.add_row(name, title, f"{each.epoch_s:.3g}", batch, limit, _memory(each), _way(choice), basis, style=style)
    _console(160).print(table)
    batches = next(each.kind.batches for each in found if not isinstance(each, PenstockError))
    print(f"An epoch has {counted(batches, 'batches')}.")
    if any(machine.ratios is not None for machine in known):
        print(
            "Estimated: the operators of h200 at these ratios of memory bandwidth, float32 rate and link to the host,"
            " with the same host. Expect them to tell 2x from 1.2x, and not more."
        )
    for machine in known:
        if machine.estimated and machine.ratios is None:
            print(f"{machine.name}: {machine.basis}.")
    said = dict[str, list[str]]()
    for machine, each in zip(known, found, strict=True):
        if isinstance(each, PenstockError):
            said.setdefault(str(each), []).append(machine.name)
        elif each.outside:
            said.setdefault(outside_sentence(each.outside), []).append(machine.name)
    for sentence, names in said.items():
        print(f"{', '.join(names)}: {sentence}")


def _ratios(ratios: dict[str, float]) -> str:
    return f"estimated ({', '.join(f'{ratio:.2g}' for ratio in ratios.values())})"


def _memory(found: "PlannedExecution") -> str:
    """What the job takes of a GPU, and where features lie if not on it."""
    room = found.room
    if room is None:
        return "no GPU"
    if room.taken is None:
        return "does not fit"
    of = "" if room.memory is None else f" of {room.memory / 1e9:.3g}"
    where = "" if room.features == "device" else f", features {room.features}"
    return f"{room.taken / 1e9:.2g}{of} GB{where}"


def _way(choice: Any) -> str:
    """How batches are executed, in a few words."""
    drawn = "GPU" if choice.sampled_by == "cuda" else "CPU"
    if choice.device == "cpu":
        groups = "" if choice.groups == 1 else f", groups of {choice.groups}"
        return f"CPU, {choice.first_layer}{groups}"
    return f"GPU, drawn by {drawn}, features {choice.features}"


def outside_sentence(outside: "tuple[Extrapolation, ...]") -> str:
    """What of a plan is outside of what was measured, in one sentence."""
    short = [each for each in outside if each.operator == "batch"]
    if short:
        return (
            f"A batch of {short[0].value * 1e3:.2g} ms is shorter than all that were measured"
            f" ({short[0].smallest * 1e3:.2g} ms and more): Python and launching decide there, so the prediction is"
            " less certain."
        )
    said = [
        f"{each.operator} with {each.size} {_number(each.value)} (measured: {_number(each.smallest)} to"
        f" {_number(each.largest)})"
        for each in outside[:_SAID]
    ]
    more = f" and {counted(len(outside) - _SAID, 'other sizes')}" if len(outside) > _SAID else ""
    return f"Outside of what was measured, so less certain: {', '.join(said)}{more}."


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _console(width: int) -> Console:
    """Where nobody looks, the terminal's width does not limit a table."""
    return Console(width=None if sys.stdout.isatty() else width)


def _print(known: "KnownMachine", found: "PlannedExecution") -> None:
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
    _console(140).print(table)
    if len(plan.alternatives) > _SHOWN:
        print(f"{len(plan.alternatives) - _SHOWN} slower alternatives are in --json.")
    for sentence in plan.unknown:
        print(f"Not predicted: {sentence}")
    fields = _row(plan.chosen, found.kind.batches)["fields"]
    print(f"Chosen: {', '.join(f'{name}: {_said(value)}' for name, value in fields.items())}")
    limit, share = plan.chosen.predicted.limit, plan.chosen.predicted.use[plan.chosen.predicted.limit]
    machine = found.machine
    print(f"The limit is {limit}, busy {percent(share)} of the time.")
    if found.room is not None:
        print(f"GPU memory: {_memory(found)}")
    if found.outside:
        print(outside_sentence(found.outside))
    print(
        f"Predicted for {machine.processor}, {counted(machine.cores, 'cores')}; GPU: {machine.gpu or 'none'}"
        f" ({known.basis}), in {found.seconds:.1f} s"
    )


def _said(value: Any) -> str:
    """As a job file has it."""
    return f"[{', '.join(value)}]" if isinstance(value, list) else str(value).replace("'", "")
