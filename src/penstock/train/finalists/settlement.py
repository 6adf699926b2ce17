"""Decides the fields that a job leaves open by timing their finalists, if the run is long enough for that."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from penstock.cost.machine_model import machine_model
from penstock.pipeline.schedule import Schedule
from penstock.pipeline.stages import StageError
from penstock.progress import SILENT, Progress
from penstock.quantities import counted
from penstock.train.decided_by import RULE, TIMED
from penstock.train.execution_modes import choose_execution, reads_rows_again
from penstock.train.finalists.finalist import FEWEST, Finalist, OpenField
from penstock.train.finalists.open_fields import OPEN_FIELDS
from penstock.train.finalists.trial import seconds_of_batches, turns_of
from penstock.train.kept_state import state_kept
from penstock.train.session import Session

_SHARE = 100
"""One batch in so many of a run may be trained for trials."""
_WORTH = 1.02
"""How much slower the first finalist must be than another, if that is taken."""


@dataclass(frozen=True)
class Settled:
    """What was found out about a field that a job left open."""

    chosen: Any
    decided_by: str
    finalists: list[dict[str, Any]] = field(default_factory=list)
    """Value, predicted and timed seconds of a batch of each."""
    batches: int = 0
    """That were trained for each."""
    seconds: float = 0.0
    """That the trial took."""
    reason: str = ""
    """Why nothing was timed, where nothing was."""

    def facts(self) -> dict[str, Any]:
        """What run.json and the result say."""
        return dict(vars(self))


def settle(session: Session, progress: Progress = SILENT) -> None:
    """Decide the open fields of a session that is about to train, one after the other (`timed_choices` of its job).

    Batches are trained under each finalist and thrown away; weights, optimiser and generators are afterwards as before.
    The session's job has the values that were chosen, so that a run that goes on later does not decide again.
    """
    task, job = session.task, session.job
    left = Schedule(task.items, task.batch_size, job.draw_seed).batches * job.epochs // _SHARE
    for name in job.timed_choices:
        entry = OPEN_FIELDS[name]
        if not _can_be_tried(session) or not entry.is_open(session):
            continue
        settled = _settled(session, entry, left, progress)
        left -= settled.batches * len(settled.finalists)
        session.settled[name] = settled.facts()
        session.decided_by[name] = settled.decided_by
        if settled.decided_by == TIMED:
            session.decided[name] = settled.chosen
            progress.note(_said(name, settled))


def _can_be_tried(session: Session) -> bool:
    """Whether steps can be thrown away: a module of the user's may count them, and learned rows are not copied.

    Where rows are read once for all steps there are no batches that could be timed.
    """
    library_model = bool(getattr(session.model, "layerwise", False))
    return library_model and not session.inputs.tables and reads_rows_again(session.job.sampler)


def _settled(session: Session, entry: OpenField, left: int, progress: Progress) -> Settled:
    usual, by = session.job.model_dump(mode="json")[entry.name], session.decided_by.get(entry.name, RULE)
    # Two finalists of the fewest batches are the least there can be; counting batches for predictions takes time too.
    if left < 2 * FEWEST:
        return Settled(usual, by, reason=_too_short(left, 2 * FEWEST))
    finalists = entry.finalists(session, machine_model())
    if len(finalists) < 2:
        return Settled(usual, by, reason="There is one finalist.")
    fewest = max(each.batches for each in finalists)
    enough = max(each.enough for each in finalists)
    batches = min(max(enough, fewest), left // len(finalists))
    if batches < fewest:
        return Settled(usual, by, reason=_too_short(left, len(finalists) * fewest))
    return _timed(session, entry, finalists, batches, progress)


def _timed(session: Session, entry: OpenField, finalists: list[Finalist], batches: int, progress: Progress) -> Settled:
    """Time every finalist in turn, and have the session use the fastest."""
    usual, began = getattr(session.job, entry.name), time.perf_counter()
    turns = turns_of(batches, max(each.batches for each in finalists))
    chosen, by, reason = usual, session.decided_by.get(entry.name, RULE), ""
    times: list[list[float]] = [[] for _ in finalists]
    try:
        with state_kept(session), progress.step(f"timing {entry.name}", sum(turns) * len(finalists), "batches"):
            for turn in turns:
                for each, spent in zip(finalists, times, strict=True):
                    entry.take(session, each.value)
                    spent.append(seconds_of_batches(session, turn))
                    progress.advance(turn)
        first, best = min(times[0]), min(range(len(times)), key=lambda place: min(times[place]))
        chosen, by = finalists[best if _WORTH * min(times[best]) < first else 0].value, TIMED
    except StageError as error:
        # The run meets the same batch, and ends with a sentence of its own and a log.
        reason = f"A trial failed in stage {error.stage!r}."
    except torch.OutOfMemoryError:
        reason = "A trial did not fit the device's memory."
    finally:
        entry.take(session, chosen)
        session.execution = choose_execution(session, session.placed)
    rows = [
        {
            "value": each.value,
            "predicted_s": each.predicted,
            "timed_s": min(spent) if spent else None,
        }
        for each, spent in zip(finalists, times, strict=True)
    ]
    return Settled(chosen, by, rows, batches, round(time.perf_counter() - began, 3), reason)


def _too_short(left: int, needed: int) -> str:
    return (
        f"The run is too short: {counted(needed, 'batches')} would be timed, and one in {_SHARE} of the run's is"
        f" {left:,}."
    )


def _said(name: str, settled: Settled) -> str:
    times = ", ".join(f"{each['value']} {1e3 * each['timed_s']:.3g} ms" for each in settled.finalists)
    return f"{name}: {settled.chosen} ({counted(settled.batches, 'batches')} of each were timed: {times})."
