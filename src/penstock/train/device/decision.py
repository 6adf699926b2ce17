"""What goes where for a session, and what is captured: what the job allows, held against the device's memory."""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from penstock.cost.machine_model import measured_model
from penstock.cost.model import CostModel
from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.memory import available_mb
from penstock.nn.layer_table import layer_entry
from penstock.pipeline.schedule import BatchPlan, Schedule
from penstock.plan import Residence, Sizes, Wanted, decide_residence
from penstock.plan.execution.choice import Device, Features
from penstock.plan.execution.feature_place import FeaturePlace, fastest_place, knows_transfers
from penstock.plan.residence import NoRoomError, Place
from penstock.sampling import NeighbourSampler
from penstock.sampling.device.room import Room, largest_room, room_for
from penstock.train.decided_by import OPERATOR_PROFILE, RULE
from penstock.train.device.memory import TYPES, Working, loaded_working, row_type
from penstock.train.device.predicted_execution import Comparison, predicted_execution
from penstock.train.device.trial import NOTHING
from penstock.train.device_memory import device_memory_of
from penstock.train.device_options import Where
from penstock.train.execution.support import CAPTURED, DEVICE_SAMPLING, Placeable, demands_of, reasons_against
from penstock.train.first_layer.ways import WAYS
from penstock.train.job import Job
from penstock.train.job_batches import kind_of_batches, unknown_of
from penstock.train.session import Session


@dataclass(frozen=True)
class Decision:
    """Where things go and why, a sentence each; `room` where the device draws, `in_place` where a layer reads features
    in their table."""

    residence: Residence
    working: Working
    room: Room | None
    captured: bool
    in_place: bool
    why: list[str]
    predicted_bytes: int = 0
    """The most that tensors will take on the device."""
    predicted_by: str = ""
    """How that was found: `traced` or `trial`."""
    untraced: str = ""
    """Why no trace could be had, where it could not."""
    decided_by: str = RULE
    """What decided where features lie."""
    drawn_by: str = RULE
    """What decided who draws, where the job leaves it open."""
    captured_by: str = RULE
    """What decided whether steps are captured, where the job leaves it open."""
    gathers: bool = False
    """Whether the host gathers rows of pinned features, beside those that the device reads by itself."""


class MemoryModel(Protocol):
    """Says what training takes of a device, before anything is there."""

    method: str
    """`traced` or `trial`."""
    untraced: str
    """Why no trace could be had; empty where it could."""

    def working(
        self, room: Room | None, captured: bool, in_place: bool, features: Place | None = None, gathers: bool = False
    ) -> Working:
        """What it takes beside topology and features, if steps are done in this way.

        `features`: where they lie, where that is known; `gathers`: whether the host gathers rows of pinned ones.
        """

    def predicted(self, decision: Decision) -> int:
        """The most that tensors take at once, with everything where it was decided to be."""


def decide(session: Placeable, schedule: BatchPlan, memory: MemoryModel) -> Decision:
    """For a session that trains; `memory` says what its steps need.

    What does not fit is refused here, before anything is moved.
    """
    job, graph, inputs, demands = session.job, session.graph, session.inputs, demands_of(session)
    on_host = reasons_against(DEVICE_SAMPLING, demands)
    if on_host and job.sample_on in ("device", "hybrid"):
        raise PenstockError(
            f"sample_on {job.sample_on} is not possible: {', '.join(on_host)}. Set it to auto or host.",
            code="unsupported-combination",
        )
    filled = drawn_for_slots(job) and not on_host and isinstance(schedule, Schedule)
    can_draw = not on_host and (job.sample_on != "host" or filled)
    if job.sample_on == "host":
        on_host = [*on_host, "sample_on is host"]
    if job.feature_paths == "auto" and not isinstance(schedule, Schedule):
        # Slots of workers' shares are not filled by the host.
        job = job.model_copy(update={"feature_paths": ["cache", "pinned"]})
    uncaptured = [*reasons_against(CAPTURED, demands), *_uncaptured_by_wish(job), *_unfilled(session, schedule)]
    room = presampled_room(job, graph, schedule) if can_draw else None
    in_place = not uncaptured and layer_entry(job.model).reads_in_place(job) and _in_place(job)
    working, residence, gathers = _fitting(session, job, memory, room, not uncaptured, in_place, on_host)
    model, decided_by, faster = measured_model(), RULE, list[str]()
    if model is not None and isinstance(session, Session) and _is_open(session, residence) and knows_transfers(model):
        decided_by = OPERATOR_PROFILE
        best, usual = _fastest(model, session, residence)
        if best is not usual:
            faster = [_why_faster(best, usual)]
            job = job.model_copy(update={"placement": _with_place(job, best)})
            working, residence, gathers = _fitting(session, job, memory, room, not uncaptured, in_place, on_host)
    captured = not uncaptured and can_capture(job, residence.topology, residence.features)
    drawn_by = captured_by = RULE
    # Workers of a cluster, whose batches are shares, must not decide each for itself.
    steps = predicted_execution(model, session) if isinstance(schedule, Schedule) else None
    if steps is not None and job.sample_on == "auto" and residence.topology != "host":
        compared = steps.drawn_by_host(residence, captured)
        drawn_by = RULE if compared is None else OPERATOR_PROFILE
        if compared is not None and compared.takes_other:
            on_host, room, captured, in_place = [_predicted("the host draws", compared)], None, False, False
            working, residence, gathers = _fitting(session, job, memory, None, False, False, on_host)
    if steps is not None and job.capture == "auto" and captured and room is not None:
        compared = steps.launched(residence, room)
        captured_by = RULE if compared is None else OPERATOR_PROFILE
        if compared is not None and compared.takes_other:
            uncaptured, captured, in_place = [_predicted("steps are launched", compared)], False, False
            working, residence, gathers = _fitting(session, job, memory, room, False, False, on_host)
    if not uncaptured and not captured:
        uncaptured = ["the host draws batches or copies features for each"]
    in_place = in_place and captured and residence.features == "device"
    if residence.topology == "host" and not captured:
        room = None
    why = [*residence.why, *faster, *_why_steps(on_host, uncaptured)]
    if memory.untraced:
        why.append(untraced_sentence(memory.untraced))
    decision = Decision(
        residence, working, room, captured, in_place, why, predicted_by=memory.method, untraced=memory.untraced,
        decided_by=decided_by, drawn_by=drawn_by, captured_by=captured_by, gathers=gathers,
    )  # fmt: skip
    return replace(decision, predicted_bytes=memory.predicted(decision) + inputs.device_table_bytes)


def _predicted(what: str, compared: Comparison) -> str:
    return (
        f"by this machine's operator profile a batch takes {1e3 * compared.other:.3g} ms if {what}, and"
        f" {1e3 * compared.usual:.3g} ms otherwise"
    )


def untraced_sentence(reason: str) -> str:
    """Why memory was predicted by two small steps."""
    return f"Memory was predicted by two small steps: the step cannot be traced ({reason})."


def _uncaptured_by_wish(job: Job) -> list[str]:
    """Why a job does not want its steps captured."""
    reasons = [] if job.capture else ["capture is off"]
    draws = job.sample_on == "hybrid" or (job.sample_on == "host" and not drawn_for_slots(job))
    return [*reasons, f"sample_on is {job.sample_on}"] if draws else reasons


def _unfilled(session: Placeable, schedule: BatchPlan) -> list[str]:
    """Why the host cannot fill the slots of captured steps, where the job's first layer asks it to."""
    job, inputs = session.job, session.inputs
    way, shares = WAYS[job.first_layer], not isinstance(schedule, Schedule)
    if not (way.on_host or way.on_both):
        asked = job.feature_paths != "auto" and "gathered" in job.row_paths
        return ["the host gathers rows for workers' shares of batches (feature_paths)"] if asked and shares else []
    if way.filler is None:
        return [f"the host computes in every step (first_layer {job.first_layer})"]
    if shares:
        return [f"the host reads features for workers' shares of batches (first_layer {job.first_layer})"]
    tables = [session.graph.nodes[name].fields[field] for name, field in inputs.fields.items()]
    return [reason for table in tables for reason in way.filler.reasons_against(job, table)]


def can_capture(job: Job, topology: Place, features: Place) -> bool:
    """Whether steps can be captured with lists and features in these places."""
    return (topology != "host" or drawn_for_slots(job)) and (
        features != "host" or WAYS[job.first_layer].filler is not None
    )


def drawn_for_slots(job: Job) -> bool:
    """Whether the host draws batches for slots that it fills as well, as the job asks for."""
    way = WAYS[job.first_layer]
    return job.sample_on == "host" and way.on_host and way.filler is not None


def nothing_placed(job: Job) -> Decision:
    """For a session that only uses a model: it streams the graph from the host."""
    working = loaded_working(NOTHING, None, 0, 1, 0, row_type(job))
    return Decision(Residence("host", "host", 0, working.bytes, 0, []), working, None, False, False, [])


def stored_type(job: Job, array: Any) -> torch.dtype:
    """The type of placed features: as asked for; stored float16 stays, everything else is float32."""
    if job.feature_type != "stored":
        return TYPES[job.feature_type]
    return {np.dtype(np.float16): torch.float16}.get(array.dtype, torch.float32)


def _fitting(
    session: Placeable,
    job: Job,
    memory: MemoryModel,
    room: Room | None,
    captured: bool,
    in_place: bool,
    on_host: list[str],
) -> tuple[Working, Residence, bool]:
    """The working memory and the places that go together, and whether the host gathers rows of pinned features.

    It does where the job allows it; where that is left open and its buffers have no room, it does not.
    """
    given = session, job, memory, room, captured, in_place, on_host
    try:
        return _fitting_with(gathers_rows(job), *given)
    except NoRoomError:
        if job.feature_paths != "auto":
            raise
        return _fitting_with(False, *given)


_MOST_CACHED = 0.8
"""Share of the rows on the device from which on the host's turn in every batch is not worth the few that are left."""


def gathers_rows(job: Job) -> bool:
    """Whether the host may gather rows of pinned features: it does nothing else with them."""
    way = WAYS[job.first_layer]
    return "gathered" in job.row_paths and not way.on_host and not way.on_both


def _fitting_with(
    gathers: bool,
    session: Placeable,
    job: Job,
    memory: MemoryModel,
    room: Room | None,
    captured: bool,
    in_place: bool,
    on_host: list[str],
) -> tuple[Working, Residence, bool]:
    """What is read in place lies on the device, what is captured is not on the host, but for features that the host
    itself brings."""
    inputs, graph = session.inputs, session.graph
    ways = [(True, True)] * in_place + [(True, False)] * captured + [(False, False)]
    needed = read_place(job)
    place: Place | None = None if needed == "auto" else needed
    for is_captured, reads_in_place in ways:
        filled = gathers and place == "pinned"
        working = memory.working(room, is_captured and room is not None, reads_in_place, place, gathers=filled)
        residence = _decided(job, graph, inputs.fields, working, on_host, inputs.device)
        possible = not is_captured or can_capture(job, residence.topology, residence.features)
        if (not reads_in_place or residence.features == "device") and possible:
            break
    if residence.features == "pinned" and gathers and place != "pinned":
        # Rows that the host gathers have buffers on the device, which a cache leaves room for.
        working = memory.working(room, is_captured and room is not None, False, "pinned", gathers=True)
        residence = _decided(job, graph, inputs.fields, working, on_host, inputs.device)
    rows = sum(len(graph.nodes[name].fields[field]) for name, field in inputs.fields.items())
    if job.feature_paths == "auto" and residence.cache_rows > _MOST_CACHED * rows and gathers:
        return _fitting_with(False, session, job, memory, room, captured, in_place, on_host)
    return working, residence, gathers and residence.features == "pinned"


def _is_open(session: Session, residence: Residence) -> bool:
    """Whether the job leaves it open where features lie that do not fit on the device, and their reads are known."""
    wish = session.job.placed
    open_place = wish.features == "auto" and wish.cache_rows is None and session.job.first_layer == "auto"
    return open_place and residence.features == "pinned" and not unknown_of(session)


def _fastest(model: CostModel, session: Session, residence: Residence) -> tuple[FeaturePlace, FeaturePlace]:
    """The fastest place of features beside a device, and the usual one: pinned, with a cache of all that fits."""
    drawn_by: Device = "cpu" if residence.topology == "host" or not model.knows("sample", "cuda") else "cuda"
    places: list[tuple[Features, int]] = [("pinned", residence.cache_rows), ("pinned", 0)]
    gathers = gathers_rows(session.job)
    if not gathers:
        # Otherwise the host gathers pinned rows, as many of them as is fastest.
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
    """Whether the first layer may read features in their table: as they are, and from the device's own memory."""
    as_stored = job.input_dropout == 0 and job.scale_features == "none" and not job.residual
    return as_stored and read_place(job) in ("auto", "device")


def _why_steps(on_host: list[str], uncaptured: list[str]) -> list[str]:
    drawn = [f"Batches are drawn on the host: {', '.join(on_host)}."] if on_host else []
    if uncaptured:
        return [*drawn, f"Steps are launched one by one: {', '.join(uncaptured)}."]
    return [*drawn, "Steps are captured once and replayed."]


def _decided(
    job: Job, graph: Graph, fields: dict[str, str], working: Working, drawn_on_host: list[str], device: torch.device
) -> Residence:
    """Where the graph goes; refused with a sentence where it cannot."""
    wish = job.placed
    if drawn_on_host and wish.topology in ("device", "pinned"):
        raise PenstockError(
            f"placement keeps the topology {wish.topology}, but batches are drawn on the host"
            f" ({', '.join(drawn_on_host)}): leave out topology.",
            code="unsupported-combination",
        )
    features = read_place(job)
    tables = [graph.nodes[name].fields[field] for name, field in fields.items()]
    sizes = [table.size * stored_type(job, table).itemsize for table in tables]
    free, total = device_memory_of(device)
    edges = next(iter(graph.edges.values()), None)
    topology = 0 if drawn_on_host or edges is None else edges.indptr.nbytes + edges.indices.nbytes
    bounds = edges.indptr.nbytes if topology and edges is not None else 0
    rows = sum(len(table) for table in tables)
    cache = 0 if WAYS[job.first_layer].on_host else wish.cache_rows
    if "cache" not in job.row_paths:
        if cache:
            raise PenstockError(
                f"placement keeps {cache:,} rows on the device, but feature_paths leaves out the cache: add cache to"
                " feature_paths, or leave out cache_rows.",
                code="unsupported-combination",
            )
        cache = 0
    if not graph.is_homogeneous:
        # A cache would have to be shared out among the types.
        if cache:
            raise PenstockError(
                "cache_rows is for graphs with one node type and one edge type: leave it out of `placement`.",
                code="unsupported-combination",
            )
        cache = 0
    row = max(1, sum(sizes) // max(rows, 1))
    return decide_residence(
        Sizes(topology, sum(sizes), row, rows, working.bytes, free, total, available_mb() << 20, bounds),
        Wanted("host" if drawn_on_host else wish.topology, features, cache, job.device_share),
    )


def read_place(job: Job) -> Where:
    """Where features must lie for a job's first layer; what was asked for by name and does not do is refused."""
    wish, way = job.placed.features, WAYS[job.first_layer]
    # What is pinned the host can read as well.
    on_host: Where = "pinned" if wish == "pinned" else "host"
    needed: Where = on_host if way.on_host else "pinned" if way.on_both else wish
    if wish not in ("auto", needed):
        whose = "on the host" if way.on_host else "in pinned memory"
        raise PenstockError(
            f"placement keeps the features {wish}, but first_layer {job.first_layer} reads them {whose}: leave out"
            " features.",
            code="unsupported-combination",
        )
    if way.on_both and "gathered" in job.row_paths and job.feature_paths != "auto":
        raise PenstockError(
            f"feature_paths has the host gather rows, and first_layer {job.first_layer} has it aggregate them: leave"
            " gathered out of feature_paths.",
            code="unsupported-combination",
        )
    return needed


_PRESAMPLED = 16
"""Batches from which the room of all others is concluded."""


def presampled_room(job: Job, graph: Graph, schedule: BatchPlan) -> Room:
    """The room for a job's batches, from its first ones; the same whenever and wherever the run goes on."""
    fanouts = [fanout for fanout in job.fanouts if isinstance(fanout, int)]
    sampler = NeighbourSampler(graph, fanouts, job.replace)
    sizes: list[list[int]] = []
    for planned, _ in zip(schedule.from_position(), range(_PRESAMPLED), strict=False):
        if len(planned.seeds) == schedule.batch_size or not sizes:
            batch = sampler.sample(planned.seeds, planned.key)
            sizes.append([size for block in batch.blocks[::-1] for size in (block.num_edges, block.num_src)])
    return room_for(sizes, schedule.batch_size, largest_room(schedule.batch_size, fanouts, graph.num_nodes))
