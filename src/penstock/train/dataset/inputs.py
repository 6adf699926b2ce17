"""The inputs of a model: rows of vertices, stored or learnable, and the fields of edges that it reads."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array, is_on_disk
from penstock.graph.folder import Graph
from penstock.graph.integrity import non_finite
from penstock.graph.prepare import divide_by_sum
from penstock.graph.schema import EdgeType, edge_key
from penstock.memory import available_mb, file_mb, require_memory
from penstock.nn.layer_table import LAYERS, ModelOptions, model_options
from penstock.nn.scorer_table import initial_rows
from penstock.pipeline.batch_rows import (
    NO_EDGE_ROWS,
    PLAIN_ROWS,
    BufferPool,
    EdgeFields,
    EdgeRows,
    HostCarrier,
    ReclaimedBuffers,
    RowReader,
)
from penstock.pipeline.stages import Batch, Carrier
from penstock.sampling.sampler_table import SAMPLERS
from penstock.store.device.embedding import DeviceEmbeddingTable
from penstock.store.disk_rows import DiskRows, cached_rows
from penstock.store.embedding import MOMENTS, EmbeddingTable, Optimiser, row_optimiser
from penstock.store.source import ArraySource, LocalStore, RowSource
from penstock.traced import is_traced
from penstock.train.job import Job
from penstock.train.job_options import DataOptions
from penstock.train.run_context import device_memory_of

# The edge fields that a job's model reads: named by the job, or found where it says auto, and checked.

AnyJob = TypeVar("AnyJob", bound=Job)
AUTO = "auto"
_USUAL = {"edge_weight": ("edge_weight", "weight"), "edge_features": ("edge_attr",)}
"""Field names of other libraries, which `auto` prefers where edges have several fields."""


def is_own_module(job: Job, module: torch.nn.Module | None) -> bool:
    """Whether the model is a module of the user's, which gets edge fields as named arguments."""
    return job.module is not None if module is None else not getattr(module, "layerwise", False)


def sampled_job(job: Job, module: torch.nn.Module | None) -> Job:
    """The job as samplers need it: marked as having a user's module, also where that was passed as an object."""
    if module is None or job.edge_weight is None:
        return job
    return job.model_copy(update={"module": type(module).__name__ if is_own_module(job, module) else None})


def with_edge_fields(job: AnyJob, relations: Mapping[EdgeType, Iterable[str]]) -> AnyJob:
    """The job with its `auto` edge fields replaced by names; `relations` maps each relation to its fields."""
    if job.edge_weight is None and not job.edge_features:
        return job
    if job.weight is not None and job.edge_weight is not None:
        raise PenstockError(
            "weight draws neighbours by a field, which weighs messages already, and edge_weight weighs them after a"
            " uniform draw: set one of both.",
            code="conflicting-options",
        )
    taken = {job.label, job.time, job.weight}
    known = list(dict.fromkeys(name for fields in relations.values() for name in fields if name not in taken))
    weight = job.edge_weight
    if weight == AUTO:
        weight = _found("edge_weight", [name for name in known if name not in job.edge_features])
    features = job.edge_features
    if features == [AUTO]:
        features = [_found("edge_features", [name for name in known if name != weight])]
    for option, name in [("edge_weight", weight), *(("edge_features", name) for name in features)]:
        if name is not None and not any(name in fields for fields in relations.values()):
            hint = nearest(name, known) if known else ": the graph's edges carry nothing."
            raise PenstockError(f"{option} names {name!r}, which no edges have{hint}", code="field-missing")
    return job.model_copy(update={"edge_weight": weight, "edge_features": features})


def edge_rows(
    job: Job, relations: Mapping[EdgeType, Iterable[str]], source: Callable[[str], RowSource], own_module: bool
) -> EdgeRows:
    """The rows that are read for a batch's edges; `source` gives those of `relation/field`.

    A user's module gets weights as rows. For models of the zoo they are part of the estimators in the neighbour lists.
    """
    found = {}
    for kind, fields in relations.items():
        names = [name for name in job.edge_features if name in fields]
        weight = job.edge_weight if own_module and job.edge_weight in set(fields) else None
        rows = EdgeFields(
            tuple(_numbers(source(f"{edge_key(kind)}/{name}"), kind, name) for name in names),
            None if weight is None else _numbers(source(f"{edge_key(kind)}/{weight}"), kind, weight, single=True),
        )
        found[kind] = rows
    return EdgeRows(found)


def check_model(options: ModelOptions, job: Job, rows: EdgeRows) -> None:
    """Refuse edge fields that a model of the zoo would ignore, and a model that lacks edge fields it needs."""
    entry = LAYERS[options.model]
    if job.edge_weight is not None and not entry.weighs_messages(options):
        able = ", ".join(name for name in LAYERS if LAYERS[name].weighs_messages(model_options(model=name)))
        raise PenstockError(
            f"Model {options.model} with aggregate {options.aggregate} does not weigh messages by edge_weight: leave it"
            f" out, or use one of {able}.",
            code="unsupported-combination",
        )
    if not rows:
        return
    if entry.edge_features == "none":
        able = ", ".join(name for name in LAYERS if LAYERS[name].edge_features != "none")
        raise PenstockError(
            f"Model {options.model} reads no edge_features: leave them out, or use one of {able}, or a module of your"
            " own.",
            code="unsupported-combination",
        )
    if len(rows.fields) > 1 or job.reverse_edges:
        raise PenstockError(
            "Models of the zoo read edge_features of graphs with one relation: use a module of your own.",
            code="unsupported-combination",
        )
    (fields,) = rows.fields.values()
    if options.edge_width not in (0, fields.width):
        raise PenstockError(
            f"edge_width is {options.edge_width}, and edge_features have {fields.width} numbers for each edge: leave it"
            " out.",
            code="shape-mismatch",
        )


def check_module(module: torch.nn.Module, job: Job, typed: bool) -> None:
    """Refuse a user's module whose forward lacks an argument that the job gives, or needs one that it does not give."""
    parameters = inspect.signature(module.forward).parameters
    anything = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    given: dict[str, Any] = {"edge_weight": job.edge_weight, "edge_attr": job.edge_features or None}
    for name, value in given.items():
        option = "edge_features" if name == "edge_attr" else name
        names = (f"{name}_dict", name) if typed else (name,)
        taken = [parameters[each] for each in names if each in parameters]
        if value is not None and not taken and not anything:
            raise PenstockError(
                f"The job names {option}, and the module's forward takes no {names[0]}: add it, or leave out {option}.",
                code="unsupported-combination",
            )
        if value is None and any(each.default is inspect.Parameter.empty for each in taken):
            raise PenstockError(
                f"The module's forward takes {taken[0].name}, and the job does not say which field of the edges that"
                f" is: set {option}, to auto if there is only one.",
                code="option-missing",
            )


def _found(option: str, names: list[str]) -> str:
    usual = [name for name in _USUAL[option] if name in names]
    if usual or len(names) == 1:
        return (usual or names)[0]
    has = ", ".join(names) if names else "none"
    raise PenstockError(
        f"{option}: auto is for graphs whose edges have one field that can be meant, and these have {has}: name it.",
        code="option-missing",
    )


def _numbers(source: RowSource, kind: EdgeType, name: str, single: bool = False) -> RowSource:
    shape = source.row_shape()
    if source.dtype.kind not in "biuf" or len(shape) > 1 or (single and shape):
        needed = "one number" if single else "one row of numbers"
        raise PenstockError(
            f"Edge field {name!r} of {edge_key(kind)} is {source.dtype} {shape} for each edge: give {needed}.",
            code="wrong-type",
        )
    return source


def roomy_rows(source: RowSource, ids: Array, most: int, pool: BufferPool) -> torch.Tensor:
    """Rows on the host as float32, in memory for `most` of them if that is more; `pool` gives it again when the rows
    are gone.

    Rows of several chunks then take memory of one size: what held one chunk holds the next, although that may have a
    few rows more. Pages that no row is written to do not exist.
    """
    made, _ = pool.take((max(most, len(ids)), *source.shape[1:]), np.dtype(np.float32))
    # The tensor's parts keep the array, and so the buffer; parts of the array would not.
    rows = torch.from_numpy(made)[: len(ids)]
    source.read(ids, rows.numpy())
    return rows


# Where rows of features come from that memory does not hold: from the mapped files, or read from them past the page
# cache.

_CACHED_SHARE = 1 / 3
"""The share of the memory beside the neighbour lists that cached rows may take; batches and steps need the other."""


def memory_beside_lists(graph: Graph) -> int:
    """Free bytes beside the pages of mapped neighbour lists, which every batch reads, and of the program itself: where
    these are dropped for cached rows, reading them again takes longer than the rows would. At least a tenth of what is
    free.
    """
    free, program = available_mb() << 20, int(file_mb()) << 20
    arrays = (array for edges in graph.edges.values() for array in (edges.indptr, edges.indices))
    return max(free - program - sum(array.nbytes for array in arrays if is_on_disk(array)), free // 10)


def why_from_disk(tables: Mapping[str, Array], job: Job) -> str | None:
    """Why features are read from their files past the page cache, as a sentence; None where they are mapped."""
    stored = sum(table.nbytes for table in tables.values() if is_on_disk(table))
    if job.reads_disk:
        if not stored:
            raise PenstockError(
                "placement `features: disk` reads the files of a graph folder, and this graph is in memory: leave out"
                " `features`, or save the graph and name its folder.",
                code="unsupported-combination",
            )
        return "The job has features read from the disk, past the page cache."
    free = available_mb() << 20
    if job.placed.features != "auto" or stored <= free or not SAMPLERS[job.sampler].makes_batches:
        return None
    return (
        f"The features ({stored / 1e9:,.1f} GB) are larger than the memory that is free ({free / 1e9:,.1f} GB): batches"
        " read them from the disk, past the page cache."
    )


def sources_of(tables: Mapping[str, Array], job: Job, from_disk: bool, free: int) -> dict[str, RowSource]:
    """The rows of stored features by node type. Of those read from the disk the job's `cache_rows` are kept in memory,
    or as many as a share of the `free` bytes holds.
    """
    asked = job.placement.get("cache_rows") if isinstance(job.placement, dict) and job.reads_disk else None
    room = int(_CACHED_SHARE * free)
    read = {name: table for name, table in tables.items() if from_disk and is_on_disk(table)}
    found: dict[str, RowSource] = {}
    for name, table in tables.items():
        if name not in read:
            found[name] = ArraySource(table)
            continue
        share = table.nbytes / sum(each.nbytes for each in read.values())
        found[name] = DiskRows(table, cached_rows(table, int(share * room)) if asked is None else int(share * asked))
    return found


# The input rows of a model: stored features, or learnable rows for types without features.

CPU = torch.device("cpu")


def why_no_table(graph: Graph, fields: Mapping[str, str]) -> str:
    """Why batches do not read rows of one stored table alone; empty where they do. `fields` are those read, by type."""
    if not graph.is_homogeneous:
        return "the graph has several types"
    return "" if fields else "vertex embeddings are learned"


class Inputs:
    """The features of a batch's vertices by node type; `tables` holds the learnable ones.

    Stored features are gathered ahead by the pipeline. Learnable rows are read when the batch is computed: read ahead
    they would miss the updates of the steps in between, and results would depend on the pipeline's depth.
    """

    def __init__(self, graph: Graph, job: Job, device: torch.device = CPU, learnable: bool = True) -> None:
        """`learnable`: whether types without features get learnable rows; else batches have no rows for them."""
        self.device = device
        _check_schedule(job)
        having = types_with(job.features, {name: nodes.fields for name, nodes in graph.nodes.items()})
        self.fields = {name: job.features for name in graph.nodes if name in having}
        self.no_table = why_no_table(graph, self.fields)
        bare = {name: nodes.count for name, nodes in graph.nodes.items() if name not in having and learnable}
        _require_room(bare, job)
        self.tables: dict[str, Any] = {name: _table(name, count, job) for name, count in bare.items()}
        self._field, self._repeats = job.features, job.time is not None
        self.scale = divide_by_sum if job.scale_features == "rows" else None
        self._nodes = {name: graph.nodes[name] for name in self.fields}
        known = (name for name in graph.nodes if name in self.fields or name in self.tables)
        self.widths = {name: self._width(graph, name, job) for name in known}
        tables = {name: graph.nodes[name].fields[field] for name, field in self.fields.items()}
        self.disk_note = None if is_traced() else why_from_disk(tables, job)
        """Why features are read from their files past the page cache, as a sentence; None where they are not."""
        self.sources: dict[str, RowSource] = sources_of(
            tables, job, self.disk_note is not None, memory_beside_lists(graph)
        )
        """Stored features by node type, wherever they lie."""
        self.reader: RowReader = PLAIN_ROWS
        """How batches read stored features on the host."""
        self.carrier: Carrier = HostCarrier(self.sources, self.scale)

    no_table: str
    """Why batches do not read one stored table alone (`why_no_table`)."""
    edges: EdgeRows = NO_EDGE_ROWS
    """How the edge fields of batches are read."""
    exact_edges: EdgeRows = NO_EDGE_ROWS
    """How exact inference reads edge fields; its edges have the positions of the session's graph."""

    @property
    def on_gpu(self) -> bool:
        """Whether the model is computed on a GPU."""
        return self.device.type == "cuda"

    @property
    def on_host(self) -> bool:
        """Whether the model is computed on the host; neither there nor on a GPU is it under a trace."""
        return self.device.type == "cpu"

    def read_by(self, reader: RowReader) -> None:
        """Use another reader for the features of batches."""
        self.reader, self.carrier = reader, HostCarrier(self.sources, self.scale, reader, self.edges)

    def carry_edges(self, job: Job, graph: Graph, messages: Graph | None, own_module: bool) -> None:
        """Set the edge fields that are read, as the job names them; `messages` is the graph that batches are drawn
        from.
        """

        def rows(drawn: Graph) -> EdgeRows:
            relations = {kind: edges.fields for kind, edges in drawn.edges.items()}
            return edge_rows(job, relations, LocalStore.of_graph(drawn).source, own_module)

        self.exact_edges = rows(graph)
        self.edges = self.exact_edges if messages is None or messages is graph else rows(messages)

    @property
    def note(self) -> str | None:
        """A note for the user: the graph has no features at all, or they are read from the disk; else None."""
        if self.fields:
            return self.disk_note
        width = next(iter(self.widths.values()))
        return f"No vertices have features {self._field!r}: an embedding of {width} numbers is learned for each."

    @property
    def parameters(self) -> int:
        """The number of learnable values in the tables."""
        return sum(table.size for table in self.tables.values())

    def is_finite(self) -> bool:
        """Whether all learnable values are finite."""
        return all(bool(np.isfinite(table.rows).all()) for table in self.tables.values())

    def non_finite(self) -> str | None:
        """A phrase that names stored features which are NaN or infinite; None if all are finite. Reads all of them,
        once.
        """
        for name, field in self.fields.items():
            if found := non_finite(self._nodes[name], name, field):
                return str(found)
        return None

    def pull(self, node_type: str, ids: Array, most: int = 0, pool: BufferPool | None = None) -> torch.Tensor:
        """The rows of some vertices, for inference and for steps on the whole graph; on a host with `roomy_rows`."""
        known = self.sources.get(node_type)
        if is_traced() and not (known is not None and known.on_device):
            return torch.empty(len(ids), self.widths[node_type], device=self.device)
        if node_type in self.tables:
            rows = self._learnable(node_type, ids)
            return rows.clone() if isinstance(self.tables[node_type], DeviceEmbeddingTable) else rows
        source = self.sources[node_type]
        on_host = self.on_host and not source.on_device
        if on_host:
            x = roomy_rows(source, ids, most, ReclaimedBuffers() if pool is None else pool)
        else:
            x = source.read(ids, self.device, dtype=torch.float32)
        return x if self.scale is None else self.scale(x)

    def complete(self, batch: Batch) -> dict[str, torch.Tensor]:
        """A loaded batch's features, with the current learnable rows added."""
        x = dict(batch.features)
        for name, ids in batch.vertices.items():
            if name in self.tables:
                x[name] = self._learnable(name, ids).requires_grad_()
        return x

    def _learnable(self, name: str, ids: Array | torch.Tensor) -> torch.Tensor:
        """Current learnable rows; those on the device are a view that the next step may change."""
        table = self.tables[name]
        if is_traced():
            return torch.empty(len(ids), self.widths[name], device=self.device)
        if isinstance(table, DeviceEmbeddingTable):
            return table.rows_on(ids)
        return torch.from_numpy(table.pull(_on_host(ids))).to(self.device)

    def room_for_tables(self, free: int) -> int:
        """Bytes of learnable rows and their moments on a device with `free` bytes; 0: they stay on the host.

        They lie on the device if they take less than a quarter of it. With `embedding_decay` they stay on the host,
        where the decay of rows that no batch reads is caught up later.
        """
        tables = [table for table in self.tables.values() if isinstance(table, EmbeddingTable) and not table.decay]
        size = sum(each.nbytes for table in tables for each in (table.rows, *table.moments))
        return size if len(tables) == len(self.tables) and 4 * size <= free else 0

    def put_tables_on_device(self, free: int) -> None:
        """Move learnable rows to the device, if there is room for them."""
        if self.room_for_tables(free):
            self.tables = {name: DeviceEmbeddingTable(table, self.device) for name, table in self.tables.items()}

    @property
    def has_tables_on_device(self) -> bool:
        """Whether learnable rows are on the device, or will be where memory is predicted for one."""
        if all(isinstance(table, DeviceEmbeddingTable) for table in self.tables.values()):
            return True
        return self.on_gpu and bool(self.room_for_tables(device_memory_of(self.device)[0]))

    @property
    def device_table_bytes(self) -> int:
        """Bytes of learnable rows on the device."""
        return sum(table.bytes for table in self.tables.values() if isinstance(table, DeviceEmbeddingTable))

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of learnable rows."""
        for table in self.tables.values():
            table.set_rate(rate)

    def learned_rows(self, batch: Batch, x: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """The learnable rows of a batch whose gradients are to be clipped, one row per vertex."""
        rows = {name: x[name] for name in self.tables if name in x}
        for name, given in rows.items():
            if self._repeats and given.grad is not None:
                first, total = _summed_in_place(_on_host(batch.vertices[name]), given.grad.float().cpu().numpy())
                summed = torch.zeros_like(given.grad)
                summed[torch.from_numpy(first).to(given.device)] = torch.from_numpy(total).to(summed)
                given.grad = summed
        return list(rows.values())

    def learn(self, batch: Batch, x: dict[str, torch.Tensor]) -> None:
        """Apply the gradients of the batch's learnable rows to their tables."""
        for name, table in self.tables.items():
            gradients = x[name].grad if name in x else None
            if gradients is not None and not is_traced():
                if isinstance(table, DeviceEmbeddingTable) and not self._repeats:
                    table.learn(batch.vertices[name], gradients)
                    continue
                pushed = _on_host(batch.vertices[name]), gradients.float().cpu().numpy()
                table.push(*(_summed(*pushed) if self._repeats else pushed))

    def state(self) -> dict[str, Any]:
        """The tables, for a checkpoint."""
        return {name: table.state() for name, table in self.tables.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """The tables from a checkpoint."""
        if not isinstance(state, dict) or not all(isinstance(table, dict) for table in state.values()):
            raise PenstockError(
                "The checkpoint has no embeddings, which this run needs: use the checkpoint before it.",
                code="damaged-file",
            )
        if set(state) != set(self.tables):
            raise PenstockError(
                "The checkpoint has embeddings for other node types than the graph: name the run's graph.",
                code="mismatched-inputs",
            )
        for name, table in self.tables.items():
            steps = state[name].get("steps")
            if type(steps) is not int or steps < 0:
                raise PenstockError(
                    f"The checkpoint's embeddings of {name!r} are at step {steps!r}, which is not a step of the run:"
                    " use another checkpoint.",
                    code="damaged-file",
                )
            table.restore(state[name])

    def begin_with(self, tables: Mapping[str, Array]) -> None:
        """Begin with rows of an earlier run: old vertices keep theirs by number, those behind them stay as they were
        initialised, and the optimiser of rows begins anew.
        """
        self.restore(self._begun_with(tables))

    def _begun_with(self, tables: Mapping[str, Array]) -> dict[str, Any]:
        """The state of the tables, which have made no step, with rows of an earlier run."""
        state = {name: table.state() for name, table in self.tables.items()}
        for name, rows in tables.items():
            state[name]["rows"] = np.concatenate([rows, state[name]["rows"][len(rows) :]])
        return state

    def _width(self, graph: Graph, name: str, job: Job) -> int:
        if name in self.tables:
            return job.embedding_width
        x = graph.nodes[name].fields[job.features]
        if x.ndim != 2 or x.dtype.kind not in "biuf":
            raise PenstockError(
                f"Features {job.features!r} of {name!r} are {x.dtype} {x.shape}: give one row of numbers for each"
                " vertex.",
                code="wrong-type",
            )
        return int(x.shape[1])


def _require_room(counts: Mapping[str, int], job: Job) -> None:
    """Refuse embeddings that do not fit memory together with their optimiser's state."""
    for name, count in counts.items():
        size = 4 * count * job.embedding_width * (1 + MOMENTS[_optimiser(count, job)])
        what = f"Embeddings of {count:,} vertices {name!r} with their optimiser"
        require_memory(size, what, "check the vertex count, lower `embedding`, or train on a cluster")


def _check_schedule(job: Job) -> None:
    """Refuse a schedule for embeddings with decay, whose steps are caught up later."""
    if job.schedule_of == "all" and (job.schedule is None or job.embedding_decay):
        raise PenstockError(
            "schedule_of all needs a `schedule`, and no embedding_decay: set the one, or leave out the other.",
            code="conflicting-options",
        )


def _table(name: str, count: int, job: Job) -> EmbeddingTable:
    """The table of learnable rows of a node type."""
    how = job.embedding_width, _optimiser(count, job), job.embedding_lr, job.draw_seed
    scorer = None if job.has_layers else job.scorer
    initial = initial_rows(job.embedding_init, scorer, count, job.embedding_width, job.margin, job.distance)
    return EmbeddingTable(name, count, *how, decay=job.embedding_decay, initial=initial)


def _optimiser(count: int, job: Job) -> Optimiser:
    return row_optimiser(job.embedding_optimiser, job.has_layers, count, job.batch_size)


def types_with(field: str, known: Mapping[str, Iterable[str]]) -> set[str]:
    """The types that have a field, among those `known` by type. A field that the user named and no type has is an
    error.
    """
    having = {name for name, fields in known.items() if field in fields}
    if not having and field != DataOptions.model_fields["features"].default:
        others = sorted({each for fields in known.values() for each in fields})
        hint = nearest(field, others) if others else ": leave out `features`, and embeddings are learned."
        raise PenstockError(f"No vertices have features {field!r}{hint}", code="field-missing")
    return having


def _on_host(ids: Any) -> Array:
    """Vertex numbers as an array on the host, wherever they were drawn."""
    return ids.cpu().numpy() if isinstance(ids, torch.Tensor) else ids


def _summed(ids: Array, gradients: Array) -> tuple[Array, Array]:
    """Sum gradients to one per vertex: with sampling by time a vertex has a row in the tree of every seed that reads
    it.
    """
    first, total = _summed_in_place(ids, gradients)
    return ids[first], total


def _summed_in_place(ids: Array, gradients: Array) -> tuple[Array, Array]:
    """The first position of each vertex, in the order of vertex numbers, and its summed gradient."""
    different, first, place = np.unique(ids, return_index=True, return_inverse=True)
    total = np.zeros((len(different), gradients.shape[1]), gradients.dtype)
    np.add.at(total, place, gradients)
    return first, total
