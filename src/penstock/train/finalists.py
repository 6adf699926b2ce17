"""Fields that a job leaves open, decided by timing some batches with each finalist value before the run begins."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from penstock.cost.model import CostModel, machine_model
from penstock.formatting import counted
from penstock.memory import available_mb
from penstock.nn.layer_table import LAYERS
from penstock.nn.operator_costs import Order
from penstock.pipeline.batch_rows import PlainReading
from penstock.pipeline.grouped_batches import batch_bytes, group_size
from penstock.pipeline.schedule import START, Position, Schedule
from penstock.pipeline.stages import Batch, StageError
from penstock.plan.execution import BatchKind, ExecutionChoice
from penstock.plan.execution.choice import Device, Features
from penstock.plan.execution.first_layer import WayWork, rows_aggregated, rows_gathered, rows_of_place
from penstock.plan.execution.search import cheapest_orders
from penstock.processes import default_threads
from penstock.progress import SILENT, Progress
from penstock.train.auto_values import is_drawn_by_host
from penstock.train.execution_modes import choose_execution, reads_rows_again
from penstock.train.first_layer.ways import WAYS, FirstLayerWay, first_layer_reader, reasons_against
from penstock.train.job import Job
from penstock.train.job_batches import kind_of_batches, predicted_seconds, unknown_of
from penstock.train.session import RULE, TIMED, Session, state_kept

# What an open field declares, so that its values can be timed.

FEWEST = 8
"""The least number of batches in a trial; the first quarter fills the pipeline and is not counted."""
ENOUGH = 60
"""The most batches that a finalist is tried on, unless it says otherwise."""


@dataclass(frozen=True)
class Finalist:
    """A value of a field that may be the fastest."""

    value: Any
    predicted: float | None = None
    """Predicted seconds of a batch; None where the cost model does not know its operators."""
    batches: int = FEWEST
    """The least number of batches that a trial must train."""
    enough: int = ENOUGH
    """The most batches that a trial trains."""


@dataclass(frozen=True)
class OpenField:
    """A field of a job that may be left open, and is then decided when a run starts."""

    name: str
    is_open: Callable[[Session], bool]
    """Whether the session's job leaves it open and several values are possible for it."""
    finalists: Callable[[Session, CostModel], list[Finalist]]
    """At most three candidate values; the first is the one used without a trial."""
    take: Callable[[Session, Any], None]
    """Make the session use a value from its next step on."""


# The predicted seconds of a session's batches under each finalist.

_FAR = 1.6
"""A finalist predicted to take this many times as long as the fastest is not timed. The worst predictions were off by
up to 1.6.
"""
FAR_CAPTURED = 4.0
"""The same for captured steps whose slots the host fills: its threads were up to three times as fast as predicted."""
_MOST = 3


class PredictedSteps:
    """Predicts the batches of a session with the cost model."""

    def __init__(self, session: Session, model: CostModel) -> None:
        self._session, self._model = session, model
        self._kind: BatchKind | None = None if unknown_of(session) else kind_of_batches(session)

    def orders(self) -> tuple[Order, ...] | None:
        """The order of products of every layer: the one that the job asks for, or the cheapest."""
        if self._kind is None:
            return None
        asked = self._session.job.order
        cheapest = cheapest_orders(self._model, self._kind, self._device)
        given = asked if isinstance(asked, list) else [asked] * len(cheapest)
        return tuple(own if own != "auto" else best for own, best in zip(given, cheapest, strict=True))

    def seconds(
        self,
        way: WayWork,
        first_layer: str,
        orders: Sequence[Order] | None = None,
        groups: int | None = None,
        features: Features = "host",
        cache_rows: int = 0,
        in_run: bool = False,
    ) -> float | None:
        """Predicted seconds of a batch with features in a place, or `in_run` with what runs take beyond operators; None
        where the cost model does not know all operators.
        """
        if self._kind is None:
            return None
        job = self._session.job
        if self._is_captured and way(self._kind).filled and not self._model.knows("host_gather", "cuda"):
            # Rates of one thread that prepares batches for a pipeline do not predict all threads filling slots.
            return None
        known = self.orders() if orders is None else tuple(orders)
        assert known is not None
        choice = ExecutionChoice(
            self._device,
            self._drawn_by,
            features,
            first_layer,
            known,
            cache_rows,
            sample_threads=job.drawing_threads,
            groups=max(1, job.groups) if groups is None else groups,
            launched=self._session.placed is not None and not self._is_captured,
        )
        return predicted_seconds(self._model, self._kind, choice, way, job, in_run)

    @property
    def _is_captured(self) -> bool:
        placed = self._session.placed
        return placed is not None and placed.is_captured

    @property
    def _device(self) -> Device:
        return "cpu" if self._session.placed is None else "cuda"

    @property
    def _drawn_by(self) -> Device:
        placed = self._session.placed
        if placed is None:
            return "cpu"
        # Captured steps draw for themselves if the device has the lists.
        return "cuda" if placed.sample is not None or (self._is_captured and placed.topology is not None) else "cpu"


def closest(finalists: Sequence[Finalist], far: float = _FAR) -> list[Finalist]:
    """The first finalist and those that may be faster: at most three, none predicted to take `far` times as long."""
    first, *others = finalists
    known = [each.predicted for each in finalists if each.predicted is not None]
    if known:
        most = far * min(known)
        others = [each for each in others if each.predicted is None or each.predicted <= most]
        others.sort(key=lambda each: -1.0 if each.predicted is None else each.predicted)
    return [first, *others[: _MOST - 1]]


# Training steps that are timed and discarded.

_TURNS = 2
_UNCOUNTED = 4
"""One in this many parts of a trial, the first, is not counted: the pipeline fills, and kernels are loaded."""

BURST = 16
"""Captured steps between two readings of the clock; the device is idle there, as it is in a run from time to time."""
CAPTURED_BATCHES = (3 * BURST, 9 * BURST)
"""The fewest and most captured steps of a trial: host and device try several shares of their work meanwhile."""

Clock = Callable[[], float]


def seconds_of_batches(session: Session, batches: int, clock: Clock = time.perf_counter) -> float:
    """Mean seconds of a batch while a session, whose state the caller keeps, trains its first ones."""
    session.execution = choose_execution(session, session.placed)
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.draw_seed)
    if session.placed is not None and session.placed.is_captured:
        return _fastest_burst(session, schedule, batches, clock)
    with session.execution.steps(schedule, START, lambda position: 1, lambda *_: None) as steps:
        ends = [clock() for _ in islice(steps, batches)]
    first = batches // _UNCOUNTED
    return (ends[-1] - ends[first]) / (batches - 1 - first)


def _fastest_burst(session: Session, schedule: Schedule, batches: int, clock: Clock) -> float:
    """Mean seconds of a batch in the fastest burst after the first; other bursts may try slower shares of host and
    device.
    """

    def pause(position: Position) -> int:
        return min(BURST, schedule.batches - position.batch)

    trained, spent = 0, list[tuple[int, float]]()
    with session.execution.steps(schedule, START, pause, lambda *_: None) as steps:
        last = clock()
        for done in steps:
            now = clock()
            spent.append((len(done), (now - last) / len(done)))
            trained, last = trained + len(done), now
            if trained >= batches:
                break
    counted = spent[1:] or spent
    # An epoch may end with a short burst.
    longest = max(size for size, _ in counted)
    return min(seconds for size, seconds in counted if size == longest)


def turns_of(batches: int, fewest: int) -> list[int]:
    """The batches of each turn of a trial: two turns where both are long enough."""
    return [batches // _TURNS] * _TURNS if batches >= _TURNS * fewest else [batches]


# `first_layer: auto`: ways of reading the first layer's inputs for which nothing has to be placed anew.


def _first_layer_is_open(session: Session) -> bool:
    return session.job.first_layer == "auto" and bool(_others(session))


def _others(session: Session) -> list[FirstLayerWay]:
    """The ways that can replace `auto`: on the host those that give the same bits, beside a GPU those in which the host
    reads.
    """
    placed, on_host = session.placed, session.inputs.on_host
    if placed is not None and placed.is_captured:
        # Triton is imported where there is a device for it.
        from penstock.train.device.placement import other_ways

        return other_ways(session, placed)
    if placed is not None and placed.decision.residence.features != "host":
        return []
    if on_host and placed is None and _impossible(WAYS["auto"], session):
        # Rows are then read unchanged in any case.
        return []
    return [
        way for way in WAYS.values() if way.on_host and way.rounds_as_auto == on_host and not _impossible(way, session)
    ]


def _impossible(way: FirstLayerWay, session: Session) -> list[str]:
    return reasons_against(way, session.job, session.model, session.inputs)


def _first_layer_finalists(session: Session, model: CostModel) -> list[Finalist]:
    placed = session.placed
    if placed is None and not _aggregates(session):
        return [Finalist("auto")]
    steps = PredictedSteps(session, model)
    captured = placed is not None and placed.is_captured
    length = CAPTURED_BATCHES if captured else (FEWEST, ENOUGH)
    found = [Finalist("auto", _seconds_of_auto(session, steps), *length)]
    for way in _others(session):
        assert way.planned is not None
        features: Features = "pinned" if way.on_both else "host"
        found.append(Finalist(way.name, steps.seconds(way.planned, way.name, features=features), *length))
    return closest(found, FAR_CAPTURED) if captured else closest(found)


def _seconds_of_auto(session: Session, steps: PredictedSteps) -> float | None:
    """Predicted seconds of a batch with what `auto` chooses."""
    placed = session.placed
    if placed is None:
        return steps.seconds(rows_aggregated, "aggregate")
    residence, gathers = placed.decision.residence, placed.decision.gathers
    way = rows_of_place(residence.features == "host", gathers)
    name = "gather" if residence.features == "host" else "device"
    return steps.seconds(way, name, features=residence.features, cache_rows=residence.cache_rows)


def _aggregates(session: Session) -> bool:
    """Whether `auto` does anything but read rows, judged by the first batch."""
    inputs, batch = session.inputs, first_batch(session)
    return not any(
        isinstance(inputs.reader.reading(batch, name, source), PlainReading) for name, source in inputs.sources.items()
    )


def first_batch(session: Session) -> Batch:
    """The first batch of a run, as the host draws it."""
    task = session.task
    return task.sample(next(Schedule(task.items, task.batch_size, session.job.draw_seed).from_position()))


def _take_first_layer(session: Session, value: Any) -> None:
    placed = session.placed
    if placed is None:
        session.job = session.job.model_copy(update={"first_layer": value})
    else:
        # Triton is imported where there is a device for it.
        from penstock.train.device.placed_graph import bring_batches, fill_by_job
        from penstock.train.device.placement import job_with

        session.job = job_with(session.job, placed, value)
    session.inputs.read_by(first_layer_reader(session.job, session.model, session.inputs))
    if placed is not None:
        (fill_by_job if placed.is_captured else bring_batches)(session, placed)


FIRST_LAYER = OpenField("first_layer", _first_layer_is_open, _first_layer_finalists, _take_first_layer)


# `groups`: batches drawn while others are trained, or a group of them drawn by all threads at once. It is open on the
# host where it is `auto`, and always where a GPU computes what the host draws: a GPU that waits for its batches gains
# from threads that do nothing but draw, and one that keeps the host waiting loses the overlap, so that a rule by the
# sampler's name would slow large models down.

_GROUPS = 3
"""The least number of groups that a trial draws; the first is not counted."""
_GROUP_SHARE = 8
"""A group may take one part in so many of the free memory."""


def _groups_are_open(session: Session) -> bool:
    if session.placed is not None:
        return session.job.groups == 1 and is_drawn_by_host(session)
    # A job that leaves it open has been decided already, by a profile or by the rule.
    return "groups" in session.decided_by and session.inputs.on_host


def group_bytes(session: Session) -> int:
    """Bytes that a group takes on the host where a GPU computes: 0 where batches are drawn one by one, and also where
    the run is too short to find out whether groups are faster.
    """
    job = session.job
    if job.groups == 1:
        trials = "groups" in job.timed_choices and _batches(session) // _SHARE >= 2 * _trial_of_groups(job)
        if not (trials and is_drawn_by_host(session) and _can_be_tried(session)):
            return 0
    size = group_size(0 if job.groups == 1 else job.groups, job.threads or default_threads())
    return min(_batches(session), size) * batch_bytes(first_batch(session))


def _trial_of_groups(job: Job) -> int:
    return _GROUPS * group_size(0, job.threads or default_threads()) + 1


def _batches(session: Session) -> int:
    task, job = session.task, session.job
    return Schedule(task.items, task.batch_size, job.draw_seed).batches * job.epochs


def _group_finalists(session: Session, model: CostModel) -> list[Finalist]:
    threads = session.job.threads or default_threads()
    steps, whole = PredictedSteps(session, model), group_size(0, threads)
    trial = _trial_of_groups(session.job)
    if session.placed is not None:
        fits = group_bytes(session) <= (available_mb() << 20) // _GROUP_SHARE
        return [Finalist(size, None, trial) for size in ((1, whole) if fits else (1,))]
    first = session.job.groups or whole
    found = [Finalist(size, steps.seconds(rows_gathered, "gather", groups=size), trial) for size in (1, whole)]
    return sorted(found, key=lambda each: each.value != first)


def _take_groups(session: Session, value: Any) -> None:
    session.job = session.job.model_copy(update={"groups": value})


GROUPS = OpenField("groups", _groups_are_open, _group_finalists, _take_groups)


# `order: auto`: each block's order of products by prediction, or one order for all layers.

_ONE_ORDER: tuple[Order, ...] = ("aggregate", "transform")


def _order_is_open(session: Session) -> bool:
    job = session.job
    # Other ways of reading the first layer's inputs fix its order.
    free = job.first_layer in ("auto", "device", "gather") and session.inputs.on_host
    return job.order == "auto" and free and bool(LAYERS[job.model].linear(job))


def _order_finalists(session: Session, model: CostModel) -> list[Finalist]:
    steps = PredictedSteps(session, model)
    cheapest, plain = steps.orders(), WAYS["gather"].planned
    assert plain is not None
    found = [Finalist("auto", steps.seconds(plain, "gather"))]
    for order in _ONE_ORDER:
        alike = [order] * len(cheapest or ())
        if list(cheapest or ()) != alike or not alike:
            found.append(Finalist(order, steps.seconds(plain, "gather", alike) if alike else None))
    return closest(found)


def _take_order(session: Session, value: Any) -> None:
    session.job = session.job.model_copy(update={"order": value})
    for layer in getattr(session.model, "convolutions", ()):
        layer.order = value


ORDER = OpenField("order", _order_is_open, _order_finalists, _take_order)


# `feature_paths: auto`: whether gathering rows on the host in every captured batch is worth its cost.

DEVICE_ALONE = ["cache", "pinned"]
"""The paths of a device that reads all rows by itself."""


def _feature_paths_are_open(session: Session) -> bool:
    placed = session.placed
    return session.job.feature_paths == "auto" and placed is not None and placed.is_captured and placed.is_divided


def _feature_path_finalists(session: Session, model: CostModel) -> list[Finalist]:
    assert session.placed is not None
    steps, residence = PredictedSteps(session, model), session.placed.decision.residence
    found = [
        Finalist(
            value,
            steps.seconds(
                rows_of_place(False, gathers), "device", features=residence.features, cache_rows=residence.cache_rows
            ),
            *CAPTURED_BATCHES,
        )
        for value, gathers in (("auto", True), (DEVICE_ALONE, False))
    ]
    return closest(found, FAR_CAPTURED)


def _take_feature_paths(session: Session, value: Any) -> None:
    # Triton is imported where there is a device for it.
    from penstock.train.device.placed_graph import divide_rows

    assert session.placed is not None
    session.job = session.job.model_copy(update={"feature_paths": value})
    divide_rows(session, session.placed, value == "auto")


FEATURE_PATHS = OpenField("feature_paths", _feature_paths_are_open, _feature_path_finalists, _take_feature_paths)


# The fields whose values are timed where a job leaves them open.

OPEN_FIELDS: dict[str, OpenField] = {each.name: each for each in (FEATURE_PATHS, FIRST_LAYER, GROUPS, ORDER)}
"""Open fields by their names in the job."""


# Decides the open fields of a job by timing their finalists, if the run is long enough.

_SHARE = 100
"""At most one batch in this many of a run is spent on trials."""
_WORTH = 1.02
"""Another finalist is chosen only if the first is slower by at least this factor."""


@dataclass(frozen=True)
class Settled:
    """The decision on a field that a job left open."""

    chosen: Any
    decided_by: str
    finalists: list[dict[str, Any]] = field(default_factory=list)
    """For each finalist: its value, predicted and timed seconds of a batch."""
    batches: int = 0
    """Batches that were trained for each finalist."""
    seconds: float = 0.0
    """Seconds that the trial took."""
    reason: str = ""
    """Why nothing was timed; empty where it was."""


def settle(session: Session, progress: Progress = SILENT) -> None:
    """Decide the open fields of a session that is about to train, one after the other (`timed_choices` of its job).

    Batches trained under each finalist are discarded: weights, optimiser and generators are restored. The chosen values
    are written to the session's job, so that a resumed run does not decide again.
    """
    job = session.job
    left = _batches(session) // _SHARE
    for name in job.timed_choices:
        entry = OPEN_FIELDS[name]
        if not _can_be_tried(session) or not entry.is_open(session):
            continue
        settled = _settled(session, entry, left, progress)
        left -= settled.batches * len(settled.finalists)
        session.settled[name] = dict(vars(settled))
        session.decided_by[name] = settled.decided_by
        if settled.decided_by == TIMED:
            session.decided[name] = settled.chosen
            progress.note(_said(name, settled))


def _can_be_tried(session: Session) -> bool:
    """Whether steps can be discarded: a module of the user's may count them, and learned rows are not copied.

    Where rows are read once for all steps there are no batches that could be timed.
    """
    library_model = bool(getattr(session.model, "layerwise", False))
    return library_model and not session.inputs.tables and reads_rows_again(session.job.sampler)


def _settled(session: Session, entry: OpenField, left: int, progress: Progress) -> Settled:
    usual, by = session.job.model_dump(mode="json")[entry.name], session.decided_by.get(entry.name, RULE)
    # Any trial has two finalists of the fewest batches at least: check that before batches are counted for predictions.
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
        # The run will meet the same batch, and report the error with its own message and log.
        reason = f"A trial failed in stage {error.stage!r}."
    except torch.OutOfMemoryError:
        reason = "A trial did not fit the device's memory."
    finally:
        entry.take(session, chosen)
        session.execution = choose_execution(session, session.placed)
    rows = [
        {"value": each.value, "predicted_s": each.predicted, "timed_s": min(spent, default=None)}
        for each, spent in zip(finalists, times, strict=True)
    ]
    return Settled(chosen, by, rows, batches, round(time.perf_counter() - began, 3), reason)


def _too_short(left: int, needed: int) -> str:
    return (
        f"The run is too short to time the choices: that takes {counted(needed, 'batches')}, and may take one in"
        f" {_SHARE} of the run's, which is {left:,}."
    )


def _said(name: str, settled: Settled) -> str:
    times = ", ".join(f"{each['value']} {1e3 * each['timed_s']:.3g} ms" for each in settled.finalists)
    return f"{name}: {settled.chosen} ({counted(settled.batches, 'batches')} of each were timed: {times})."
