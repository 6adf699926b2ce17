"""Decides what goes where for a session on a GPU, and whether its steps are captured, within the device's memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from penstock.cost.model import BlockSizes, CostModel, measured_model
from penstock.errors import PenstockError
from penstock.nn.layer_table import LAYERS
from penstock.pipeline.schedule import BatchPlan, Schedule
from penstock.plan import Residence
from penstock.plan.execution import BatchKind, ExecutionChoice
from penstock.plan.execution.choice import Device, Features
from penstock.plan.execution.first_layer import rows_of_place
from penstock.plan.execution.search import FeaturePlace, cheapest_orders, fastest_place, knows_transfers
from penstock.sampling.device.block import Room, room_for
from penstock.sampling.device.links import DrawnLinks
from penstock.sampling.device.program import DeviceProgram, Seeds, VertexSeeds
from penstock.sampling.device.typed import drawn_relations, typed_program
from penstock.sampling.sampler_table import SAMPLERS
from penstock.sampling.typed import weighing
from penstock.train.device.memory import (
    NOTHING,
    Asked,
    Fitted,
    MemoryModel,
    Working,
    drawn_for_slots,
    drawn_options,
    fitting,
    gathers_rows,
    loaded_working,
    read_place,
    row_type,
    way_of,
)
from penstock.train.execution.support import (
    CAPTURED,
    CAPTURED_SHARED,
    DEVICE_SAMPLING,
    Demands,
    Placeable,
    demands_of,
    reasons_against,
)
from penstock.train.first_layer.ways import WAYS, FirstLayerWay
from penstock.train.job import Job
from penstock.train.job_batches import kind_of_batches, predicted_seconds, unknown_of
from penstock.train.session import OPERATOR_PROFILE, RULE, Session

# Who draws a GPU's batches, and whether its steps are captured, predicted from the machine's operator profile.

_WORTH = 1.05
"""Another execution is chosen only if the usual one is predicted to be slower by at least this factor."""


class BatchSeconds(NamedTuple):
    """Predicted seconds per batch of the usual execution and of another one."""

    usual: float
    other: float

    @property
    def takes_other(self) -> bool:
        """Whether the other one is clearly faster."""
        return _WORTH * self.other < self.usual


class PredictedExecution:
    """Predicts the batches of a session on a GPU with the cost model."""

    def __init__(self, model: CostModel, session: Session) -> None:
        self._model, self._job, self._kind = model, session.job, kind_of_batches(session)

    def drawn_by_host(self, residence: Residence, captured: bool) -> BatchSeconds | None:
        """Drawing on the device compared with drawing on the host, for steps that are captured or not."""
        usual = self._seconds(self._kind, "cuda", residence, captured)
        other = self._seconds(self._kind, "cpu", residence, captured=False)
        return None if usual is None or other is None else BatchSeconds(usual, other)

    def launched(self, residence: Residence, room: Room) -> BatchSeconds | None:
        """Captured steps, which compute up to the full room of a batch, compared with steps launched one by one."""
        usual = self._seconds(_padded(self._kind, room), "cuda", residence, captured=True)
        other = self._seconds(self._kind, "cuda", residence, captured=False)
        return None if usual is None or other is None else BatchSeconds(usual, other)

    def _seconds(self, kind: BatchKind, drawn_by: Device, residence: Residence, captured: bool) -> float | None:
        """Predicted seconds of a batch; None where an operator was not measured."""
        on_host, job = residence.features == "host", self._job
        choice = ExecutionChoice(
            "cuda",
            drawn_by,
            residence.features,
            "gather" if on_host else "device",
            cheapest_orders(self._model, self._kind, "cuda"),
            residence.cache_rows,
            job.drawing_threads,
            launched=not captured,
        )
        gathers = captured and "gathered" in job.row_paths and self._model.knows("host_gather", "cuda")
        return predicted_seconds(self._model, kind, choice, rows_of_place(on_host, gathers), job)


def predicted_execution(model: CostModel | None, session: object) -> PredictedExecution | None:
    """None where drawing on the machine's GPU was not measured, or the session's batches were not counted."""
    if model is None or not isinstance(session, Session) or not model.knows("sample", "cuda") or unknown_of(session):
        return None
    return PredictedExecution(model, session)


def _padded(kind: BatchKind, room: Room) -> BatchKind:
    """The batch as captured steps compute it, padded to its room."""
    pairs = zip(room.rows[1:], room.rows[:-1], room.edges, strict=True)
    blocks = [
        BlockSizes(src, dst, edges, *_grown(known, edges))
        for (src, dst, edges), known in zip(list(pairs)[::-1], kind.blocks, strict=True)
    ]
    return replace(kind, blocks=tuple(blocks))


def _grown(block: BlockSizes, edges: int) -> list[float | None]:
    """The other sizes of a block, scaled to more edges; None where a size is not known."""
    return [None if size is None else size * edges / max(1, block.edges) for size in block[3:]]


@dataclass(frozen=True)
class PlacementDecision:
    """What goes where, with reasons as sentences; `room` is set where the device draws, `in_place` where a layer reads
    features directly in their table.
    """

    residence: Residence
    working: Working
    room: Room | None
    captured: bool
    in_place: bool
    why: list[str]
    predicted_bytes: int = 0
    """The predicted peak of tensor memory on the device, in bytes."""
    predicted_by: str = ""
    """How the peak was predicted: `traced` or `trial`."""
    untraced: str = ""
    """Why the step could not be traced; empty where it could."""
    decided_by: str = RULE
    """What decided the place of features: a rule or a prediction."""
    drawn_by: str = RULE
    """What decided who draws, where the job leaves it open."""
    captured_by: str = RULE
    """What decided whether steps are captured, where the job leaves it open."""
    gathers: bool = False
    """Whether the host gathers part of the rows of pinned features, while the device reads the others."""


def decide(
    session: Placeable, schedule: BatchPlan, memory: MemoryModel, failed: Sequence[str] = ()
) -> PlacementDecision:
    """Decide for a session that trains; `memory` predicts what its steps take, and `failed` says why its steps cannot
    be captured where that was tried.

    Raises an error, before anything is moved, for what does not fit.
    """
    asked, uncaptured = _asked(session, schedule, failed)
    draft = _Draft(asked, uncaptured, fitting(session, memory, asked))
    model = measured_model()
    if model is not None and isinstance(session, Session):
        draft = _with_fastest_place(draft, model, session, memory)
    # Workers of a cluster, whose batches are shares, must decide alike, so none of them decides by prediction.
    if isinstance(schedule, Schedule) and (steps := predicted_execution(model, session)) is not None:
        draft = _with_predicted_steps(draft, steps, session, memory)
    decision = _decided(draft, memory)
    return replace(decision, predicted_bytes=memory.predicted(decision) + session.inputs.device_table_bytes)


def _asked(session: Placeable, schedule: BatchPlan, failed: Sequence[str]) -> tuple[Asked, list[str]]:
    """How steps should be done if memory allows it, and the reasons against capturing them."""
    job, demands = session.job, demands_of(session)
    # Workers and loaders have shares of a schedule's batches; a loader's model is the user's own.
    support = CAPTURED if isinstance(schedule, Schedule) else CAPTURED_SHARED
    uncaptured = [*reasons_against(support, demands), *_uncaptured_by_wish(job), *_unfilled(session, schedule)]
    uncaptured += [*_unlisted(session, demands), *failed]
    unless_captured = [] if uncaptured else _drawn_only_captured(session, schedule)
    on_host = [] if unless_captured else _drawn_on_host(session)
    if on_host and drawn_for_slots(job):
        # The host draws for slots what a device could draw by itself.
        uncaptured = uncaptured or ["sample_on is host"]
    filled = drawn_for_slots(job) and not on_host and isinstance(schedule, Schedule)
    can_draw = not on_host and (job.sample_on != "host" or filled)
    if job.sample_on == "host":
        on_host = [*on_host, "sample_on is host"]
    one_table = not session.inputs.no_table
    if job.feature_paths == "auto" and (not one_table or not isinstance(schedule, Schedule)):
        # The host does not fill the slots of workers' shares, nor those with rows of several types or learned ones.
        job = job.model_copy(update={"feature_paths": ["cache", "pinned"]})
    room = presampled_room(session, schedule) if can_draw else None
    in_place = (
        not uncaptured
        and one_table
        and demands.library_model
        and LAYERS[job.model].reads_in_place(job)
        and _in_place(job)
    )
    if in_place and room is not None and device_program(session).finds_seeds:
        # All layers read the same lists, which name rows of the batch.
        in_place = False
    in_place = in_place and _knows_totals(session) and _suits_in_place(session, room)
    fills = isinstance(schedule, Schedule) and one_table and not unreadable(session, way_of(job, "host"))
    relations = tuple(drawn_relations(device_program(session), session.graph)) if can_draw else ()
    return Asked(job, room, not uncaptured, in_place, fills, on_host, unless_captured, relations), uncaptured


def _unlisted(session: Placeable, demands: Demands) -> list[str]:
    """Why a user's module cannot get the edges of a batch in a list of fixed length; empty where it can."""
    if demands.library_model or SAMPLERS[session.job.sampler].device is None:
        return []
    program = device_program(session) if demands.graph.is_homogeneous else None
    listed = program is None or not (program.finds_seeds or program.stages)
    return [] if listed else [f"sampler {session.job.sampler} gives all layers of a module the same edges"]


def _drawn_only_captured(session: Placeable, schedule: BatchPlan) -> list[str]:
    """The reasons why a device draws a session's batches for captured steps alone; empty where it draws for all."""
    is_alone = isinstance(session, Session) and isinstance(schedule, Schedule) and not drawn_for_slots(session.job)
    return reasons_against(DEVICE_SAMPLING, demands_of(session)) if is_alone else []


def _drawn_on_host(session: Placeable) -> list[str]:
    """The reasons to draw batches on the host; an error where the job sets `sample_on: device` all the same."""
    job, on_host = session.job, reasons_against(DEVICE_SAMPLING, demands_of(session))
    _check_drawn_by(job, on_host)
    is_open = job.sample_on == "auto" and job.placed.topology not in ("device", "pinned")
    if session.inputs.edges and is_open and not on_host and isinstance(session, Session):
        # Threads launch the device's draws in a run. With such threads a loader's epoch took 17 to 19 % longer
        # (docs/measurements.md); it draws without them now.
        return ["the host draws batches with edge features faster (set sample_on to device to draw them there)"]
    return on_host


def _check_drawn_by(job: Job, on_host: list[str]) -> None:
    """Refuse draws of the device that the job asks for where there are reasons to draw on the host."""
    if on_host and job.sample_on in ("device", "hybrid"):
        raise PenstockError(
            f"sample_on {job.sample_on} is not possible: {', '.join(on_host)}. Set it to auto or host.",
            code="unsupported-combination",
        )


@dataclass(frozen=True)
class _Draft:
    """A decision in progress: what was asked for, what fits, and what decided each choice."""

    asked: Asked
    uncaptured: list[str]
    fitted: Fitted
    faster: list[str] = field(default_factory=list)
    decided_by: str = RULE
    drawn_by: str = RULE
    captured_by: str = RULE


def _with_fastest_place(draft: _Draft, model: CostModel, session: Session, memory: MemoryModel) -> _Draft:
    """Place features where reading them is predicted to be fastest, if the job leaves that open."""
    if not _is_open(session, draft.fitted.residence) or not knows_transfers(model):
        return draft
    best, usual = _fastest(model, session, draft.fitted.residence)
    draft = replace(draft, decided_by=OPERATOR_PROFILE)
    if best is usual:
        return draft
    job = draft.asked.job
    asked = draft.asked._replace(job=job.model_copy(update={"placement": _with_place(job, best)}))
    return replace(draft, asked=asked, fitted=fitting(session, memory, asked), faster=[_why_faster(best, usual)])


def _with_predicted_steps(draft: _Draft, steps: PredictedExecution, session: Placeable, memory: MemoryModel) -> _Draft:
    """Let the host draw, or launch steps one by one, where the job leaves that open and it is
    predicted to be faster.
    """
    job, fitted = draft.asked.job, draft.fitted
    if job.sample_on == "auto" and fitted.residence.topology != "host":
        compared = steps.drawn_by_host(fitted.residence, fitted.captured)
        draft = draft if compared is None else replace(draft, drawn_by=OPERATOR_PROFILE)
        if compared is not None and compared.takes_other:
            on_host = [_predicted("the host draws", compared)]
            asked = draft.asked._replace(room=None, captured=False, in_place=False, on_host=on_host)
            draft = replace(draft, asked=asked, fitted=fitting(session, memory, asked))
    room = draft.asked.room
    if job.capture == "auto" and draft.fitted.captured and room is not None:
        compared = steps.launched(draft.fitted.residence, room)
        draft = draft if compared is None else replace(draft, captured_by=OPERATOR_PROFILE)
        if compared is not None and compared.takes_other:
            asked = draft.asked._replace(captured=False, in_place=False)
            uncaptured = [_predicted("steps are launched", compared)]
            draft = replace(draft, asked=asked, uncaptured=uncaptured, fitted=fitting(session, memory, asked))
    return draft


def _decided(draft: _Draft, memory: MemoryModel) -> PlacementDecision:
    asked, fitted, uncaptured = draft.asked, draft.fitted, draft.uncaptured
    residence, captured = fitted.residence, fitted.captured
    on_host = asked.on_host if captured else asked.unless_captured or asked.on_host
    _check_drawn_by(asked.job, [] if captured else asked.unless_captured)
    if not uncaptured and not captured:
        uncaptured = ["the host draws batches or copies features for each"]
    room = None if residence.topology == "host" and not captured else asked.room
    in_place = asked.in_place and captured and residence.features == "device"
    why = [*residence.why, *draft.faster, *_why_steps(on_host, uncaptured)]
    if memory.untraced:
        why.append(untraced_sentence(memory.untraced))
    return PlacementDecision(
        residence, fitted.working, room, captured, in_place, why, predicted_by=memory.method,
        untraced=memory.untraced, decided_by=draft.decided_by, drawn_by=draft.drawn_by, captured_by=draft.captured_by,
        gathers=fitted.gathers,
    )  # fmt: skip


def _predicted(what: str, compared: BatchSeconds) -> str:
    return (
        f"by this machine's operator profile a batch takes {1e3 * compared.other:.3g} ms if {what}, and"
        f" {1e3 * compared.usual:.3g} ms otherwise"
    )


def untraced_sentence(reason: str) -> str:
    """Why memory was predicted by two small steps."""
    return f"Memory was predicted by two small steps: the step cannot be traced ({reason})."


def _uncaptured_by_wish(job: Job) -> list[str]:
    """The reasons why the job's own fields rule out captured steps."""
    reasons = [] if job.capture else ["capture is off"]
    draws = job.sample_on == "hybrid" or (job.sample_on == "host" and not drawn_for_slots(job))
    return [*reasons, f"sample_on is {job.sample_on}"] if draws else reasons


def _unfilled(session: Placeable, schedule: BatchPlan) -> list[str]:
    """The reasons why the host cannot fill the slots of captured steps, where the job's first layer needs it to."""
    job = session.job
    way, shares = WAYS[job.first_layer], not isinstance(schedule, Schedule)
    if not (way.on_host or way.on_both):
        asked = job.feature_paths != "auto" and "gathered" in job.row_paths
        if asked and session.inputs.no_table:
            return ["the host gathers rows of several types, or beside learned ones (feature_paths)"]
        return ["the host gathers rows for workers' shares of batches (feature_paths)"] if asked and shares else []
    if way.filler is None:
        return [f"the host computes in every step (first_layer {job.first_layer})"]
    entry = SAMPLERS[job.sampler]
    if entry.device is not None and not device_program(session).is_plain:
        return [f"the host fills slots only with lists that have no weights (sampler {job.sampler})"]
    if shares:
        return [f"the host reads features for workers' shares of batches (first_layer {job.first_layer})"]
    return unreadable(session, way)


def unreadable(session: Placeable, way: FirstLayerWay) -> list[str]:
    """The reasons why stored features cannot fill slots in this way."""
    if way.filler is None:
        return []
    tables = [session.graph.nodes[name].fields[field] for name, field in session.inputs.fields.items()]
    return [reason for table in tables for reason in way.filler.reasons_against(session.job, table)]


def nothing_placed(job: Job) -> PlacementDecision:
    """The decision for a session that only uses a model: the graph stays on the host and is streamed."""
    working = loaded_working(NOTHING, None, 0, 1, 0, row_type(job))
    return PlacementDecision(Residence("host", "host", 0, working.bytes, 0, []), working, None, False, False, [])


def _is_open(session: Session, residence: Residence) -> bool:
    """Whether features do not fit on the device, their place is left open, and the cost of reading them is known."""
    wish = session.job.placed
    open_place = wish.features == "auto" and wish.cache_rows is None and session.job.first_layer == "auto"
    return open_place and residence.features == "pinned" and not unknown_of(session)


def _fastest(model: CostModel, session: Session, residence: Residence) -> tuple[FeaturePlace, FeaturePlace]:
    """The fastest place of features outside the device's memory, and the usual one: pinned, with as large a cache as
    fits.
    """
    drawn_by: Device = "cpu" if residence.topology == "host" or not model.knows("sample", "cuda") else "cuda"
    places: list[tuple[Features, int]] = [("pinned", residence.cache_rows), ("pinned", 0)]
    gathers = gathers_rows(session.job)
    if not gathers:
        # Otherwise the host gathers a part of the pinned rows, as large as is fastest.
        places.append(("host", 0))
    return fastest_place(model, kind_of_batches(session), drawn_by, list(dict.fromkeys(places)), gathers)


def _with_place(job: Job, place: FeaturePlace) -> dict[str, Any]:
    rows = {"cache_rows": place.cache_rows} if place.features == "pinned" else {}
    return {**job.placed.model_dump(exclude={"cache_rows"}), "features": place.features, **rows}


def _why_faster(best: FeaturePlace, usual: FeaturePlace) -> str:
    return (
        f"By this machine's operator profile a batch takes {1e3 * best.seconds:.3g} ms with features {best.features}"
        f" and {best.cache_rows:,} rows cached, and {1e3 * usual.seconds:.3g} ms with features {usual.features} and"
        f" {usual.cache_rows:,} rows cached."
    )


def _in_place(job: Job) -> bool:
    """Whether the first layer may read features directly in their table: unscaled, and in the device's own memory."""
    as_stored = job.input_dropout == 0 and job.scale_features == "none" and not job.residual
    return as_stored and read_place(job) in ("auto", "device")


def _suits_in_place(session: Placeable, room: Room | None) -> bool:
    """Whether the first layer gains by reading features in their table, by their width and the lists' lengths."""
    job, width = session.job, max(session.inputs.widths.values(), default=0)
    longest = None if room is None else device_program(session).rules[-1].longest
    return LAYERS[job.model].suits_in_place(job, width, longest)


def _knows_totals(session: Placeable) -> bool:
    """Whether the totals of neighbours are those of the graph, where the first layer needs them: not for tasks on
    edges, whose batches exclude some of the edges.
    """
    needed = LAYERS[session.job.model].aggregates(session.job) == "normalised"
    return not needed or session.task.facts.about == "vertices"


def _why_steps(on_host: list[str], uncaptured: list[str]) -> list[str]:
    drawn = [f"Batches are drawn on the host: {', '.join(on_host)}."] if on_host else []
    if uncaptured:
        return [*drawn, f"Steps are launched one by one: {', '.join(uncaptured)}."]
    return [*drawn, "Steps are captured once and replayed."]


_PRESAMPLED = 16
"""Batches drawn ahead, from which the room of all others is estimated."""


def presampled_room(session: Placeable, schedule: BatchPlan) -> Room:
    """The room for a job's batches, estimated from its first ones: the same on every machine and after every resume."""
    program, graph, size = device_program(session), session.graph, schedule.batch_size
    sizes: list[list[int]] = []
    for planned, _ in zip(schedule.from_position(), range(_PRESAMPLED), strict=False):
        if len(planned.seeds) == size or not sizes:
            sizes.append(program.sizes(session.task.sample(planned)))
    return room_for(sizes, size, program.largest_room(size, graph.num_nodes, graph.num_edges))


def device_program(session: Placeable) -> DeviceProgram:
    """What a device does to draw a session's batches."""
    job, graph, task, options = session.job, session.graph, session.task, drawn_options(session)
    make = SAMPLERS[job.sampler].device
    assert make is not None
    seeds: Seeds = VertexSeeds(getattr(task, "node_type", ""))
    if task.facts.about == "edges":
        seeds = DrawnLinks(task.batcher, task.items, task.batch_size)
    if not graph.is_homogeneous:
        return typed_program(graph, job.fanouts, seeds, job.replace, *weighing(options))
    program = make(options, getattr(task, "sampler", None))
    return replace(program, seeds=seeds) if seeds.stages else program
