"""Partitioning a graph, from the options to the folder."""

import json
import os
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, ArrayWriter, mapped_file, open_array, release_pages, write_array
from penstock.graph.files import read_document, write_new, write_whole
from penstock.graph.folder import Graph
from penstock.graph.hashing import key_of, unit_draws
from penstock.graph.integrity import check_graph
from penstock.graph.journal import About, FolderJournal, Sources, noted_folder
from penstock.graph.new_folders import check_target, lasting_name, new_folder
from penstock.graph.schema import DOCUMENT as GRAPH_DOCUMENT
from penstock.graph.schema import EdgeType, edge_key
from penstock.kernels import njit
from penstock.partition.folder import DOCUMENT, Partition, PartitionDocument, TypeRanges, open_partition, part_folder
from penstock.partition.forecast import AUTO, chosen
from penstock.partition.methods import METHODS
from penstock.partition.methods.metis import metis_library, part_adjacency
from penstock.partition.problem import (
    Constraints,
    Problem,
    WholeAdjacency,
    constraints_in,
    constraints_of,
    default_names,
    induced,
    undirected,
    whole_of,
)
from penstock.partition.refine import balanced, check_table, filled, repaired
from penstock.partition.writer import PartWriter, Relabelling, check_readable, relabel, write_parts
from penstock.processes import default_threads, ranges
from penstock.progress import SILENT, Progress

# The second level: every part's vertices divided among its trainers. This is only a labelling; nothing is stored twice.


def assign_trainers(problem: Problem, assignment: Array, trainers: int) -> Array:
    """A trainer (int32) for every vertex: least cut inside its part, vertices and train vertices in equal shares."""
    if trainers == 1:
        return np.zeros(problem.whole.count, np.int32)
    smallest = int(np.bincount(assignment, minlength=problem.parts).min())
    if trainers > smallest:
        raise PenstockError(
            f"--trainers {trainers} is more than the {smallest} vertices of the smallest part: use fewer.",
            code="value-out-of-range",
        )
    wanted = trainer_constraints(problem.whole)
    if metis_library() is None:
        problem.progress.note("No METIS library was found, so trainers share each part at random, not by least cut.")
        labels = _dealt(problem, assignment, wanted, trainers)
    else:
        labels = _least_cut(problem, assignment, wanted, trainers)
    for name, ratio in trainer_balance(problem, assignment, labels, trainers).items():
        if ratio > problem.tolerance + 1e-9:
            problem.progress.note(f"Trainers differ in {name}: the largest has {ratio:.3f} of its part's mean.")
    return labels


def trainer_constraints(whole: WholeAdjacency) -> Constraints:
    """What trainers should share equally: vertices, and the train vertices that set their work."""
    return constraints_of(whole, [name for name in default_names(whole) if name != "edges"])


def trainer_balance(problem: Problem, assignment: Array, trainer: Array, trainers: int) -> dict[str, float]:
    """Largest trainer's share over the mean of its part, the worst part's, per constraint."""
    wanted = trainer_constraints(problem.whole)
    loads = wanted.loads(assignment * trainers + trainer, problem.parts * trainers)
    by_part = loads.reshape(len(wanted.names), problem.parts, trainers)
    ratios = by_part.max(2) / np.maximum(by_part.mean(2), 1e-30)
    return {name: float(ratio.max()) for name, ratio in zip(wanted.names, ratios, strict=True)}


def _least_cut(problem: Problem, assignment: Array, wanted: Constraints, trainers: int) -> Array:
    labels = np.zeros(problem.whole.count, np.int32)
    with problem.progress.step("splitting parts for trainers", problem.parts, "parts"):
        adjacency = undirected(problem.whole.indptr, problem.whole.indices)
        place = np.full(problem.whole.count, -1, np.int32)
        for part in range(problem.parts):
            members = np.flatnonzero(assignment == part)
            inside = induced(adjacency, members, place)
            weights = np.ascontiguousarray(wanted.weights[:, members])
            found = part_adjacency(inside, weights, trainers, problem.tolerance, problem.seed)
            share = Problem(
                WholeAdjacency(problem.whole.graph, {}, inside.indptr, inside.indices),
                trainers,
                constraints_in(wanted.names, weights),
                problem.tolerance,
            )
            labels[members] = repaired(share, found)
            problem.progress.advance(1)
    return labels


def _dealt(problem: Problem, assignment: Array, wanted: Constraints, trainers: int) -> Array:
    """Random assignment, part by part, split vertices before others so that both divide evenly."""
    draws = unit_draws(key_of(problem.seed, "random trainers"), problem.whole.count)
    groups = np.zeros(problem.whole.count, np.int64)
    for row in wanted.weights:
        groups = 2 * groups + row
    dealt = np.lexsort((draws, groups, assignment))
    starts = np.searchsorted(assignment[dealt], np.arange(problem.parts))
    labels = np.empty(problem.whole.count, np.int32)
    labels[dealt] = (np.arange(problem.whole.count) - starts[assignment[dealt]]) % trainers
    return labels


# The quality of an assignment, whatever method made it.


@dataclass(frozen=True)
class Metrics:
    """Edges are directed list entries; volumes count vertices whose rows cross between parts once per reading part."""

    edge_cut: int
    edge_cut_fraction: float
    comm_volume: int
    """Sum over parts of the distinct remote vertices they read: the km1 objective."""
    send: list[int]
    recv: list[int]
    balance: dict[str, float]
    """Largest part over the mean, per constraint."""
    replication: float
    """Vertices present in all parts, HALO included, over vertices."""

    @property
    def max_send(self) -> int:
        """Rows sent by the part that sends most."""
        return max(self.send)

    @property
    def max_recv(self) -> int:
        """Rows read by the part that reads most."""
        return max(self.recv)

    def document(self) -> dict[str, object]:
        """The metrics as partition.json holds them."""
        return asdict(self) | {"max_send": self.max_send, "max_recv": self.max_recv}


def measure(whole: WholeAdjacency, assignment: Array, parts: int, constraints: Constraints) -> Metrics:
    """All metrics in one pass over the edges and one over the vertices."""
    readers = np.zeros((whole.count, (parts + 63) // 64), np.uint64)
    cut = _mark_readers(whole.indptr, whole.indices, assignment, readers)
    send, recv = np.zeros(parts, np.int64), np.zeros(parts, np.int64)
    _count_readers(assignment, readers, send, recv)
    edges = max(1, len(whole.indices))
    volume = int(recv.sum())
    return Metrics(
        int(cut),
        float(cut / edges),
        volume,
        send.tolist(),
        recv.tolist(),
        constraints.balance(assignment, parts),
        1.0 + volume / max(1, whole.count),
    )


@njit(nogil=True, cache=True, writes=("readers",))
def _mark_readers(indptr: Array, indices: Array, part: Array, readers: Array) -> int:
    """Set bit p of `readers[u]` when part p has an in-edge from u; return the number of edges that cross."""
    cut = 0
    for v in range(indptr.shape[0] - 1):
        p = part[v]
        word, bit = p >> 6, np.uint64(1) << np.uint64(p & 63)
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            cut += part[u] != p
            readers[u, word] |= bit
    return cut


@njit(nogil=True, cache=True)
def _count_readers(part: Array, readers: Array, send: Array, recv: Array) -> None:
    for u in range(readers.shape[0]):
        for p in range(recv.shape[0]):
            if p != part[u] and readers[u, p >> 6] >> np.uint64(p & 63) & np.uint64(1):
                send[part[u]] += 1
                recv[p] += 1


REFINEMENTS = ("balanced",)


@dataclass(frozen=True)
class Cut:
    """How to cut: the choices of `penstock partition`."""

    parts: int
    trainers: int = 1
    method: str = "metis"
    """The name of a method, or `auto`."""
    refine: str | None = None
    balance: tuple[str, ...] = ()
    """Constraints by name; empty: vertices, edges, and train where there is one."""
    tolerance: float = 1.05
    seed: int = 0
    passes: int = 1
    """How often `stream` moves single vertices."""


@dataclass(frozen=True)
class Assigned:
    """An assignment with its metrics, not yet written."""

    how: Cut
    """How it was cut: `auto` is replaced by the method that it took."""
    chosen: str | None
    """Why `auto` took that method."""
    problem: Problem
    assignment: Array
    metrics: Metrics


_NUMBERS = 1 << 22
"""Vertex numbers that are written at a time."""


def cut(
    graph: Graph,
    how: Cut,
    folder: str | os.PathLike[str],
    force: bool = False,
    threads: int | None = None,
    progress: Progress = SILENT,
    mapped: Any = None,
) -> Partition:
    """Assign, split for trainers, relabel and write; with `mapped` (a `map`) by a call of its for each part.

    A cut of a graph folder that was killed goes on when it is asked for again, if neither the graph nor the options
    have changed.
    """
    folder = Path(folder)
    check_target(folder, force)
    if graph.path is not None and folder.resolve() == graph.path.resolve():
        raise PenstockError(
            f"{folder} is the graph that is being cut: name another folder for its parts.", code="file-exists"
        )
    if mapped is not None:
        check_readable(graph)
    work = lasting_name(folder)
    journal = FolderJournal(work, _steps_of(how)) if graph.is_as_stored() else FolderJournal()
    with noted_folder(folder, force, journal, _sources_of(graph, how), _ABOUT, progress):
        assigned = _noted_assignment(graph, how, threads, progress, work, journal)
        trainer = _noted_trainers(assigned, work, journal)
        _write_partition(assigned, trainer, work / "new", journal, mapped)
    for _, array in graph.arrays():
        # Drop pages of the whole graph, which would count beside those of the parts that are read now.
        release_pages(array)
    return _checked(open_partition(folder), progress)


def uncut(graph: Graph, folder: Path) -> Partition:
    """A partition of one part, which is the graph's own folder: its vertices keep their numbers, which are all that is
    written.
    """
    types, offset = {}, 0
    for name, nodes in graph.nodes.items():
        types[name] = TypeRanges(count=nodes.count, original_offset=offset, ranges=[[0, nodes.count]])
        offset += nodes.count
    document = PartitionDocument(
        graph=graph.name,
        origin=graph.origin,
        method="none",
        parts=1,
        trainers=1,
        seed=0,
        balance=[],
        tolerance=1.0,
        node_types=types,
        edge_ranges={edge_key(kind): [0, edges.count] for kind, edges in graph.edges.items()},
        metrics={},
        trainer_balance={},
        whole=str(Path(str(graph.path)).resolve()),
    )
    with new_folder(folder) as temporary:
        with ArrayWriter(temporary / "original.npy", np.int64) as originals:
            for nodes in graph.nodes.values():
                for start, stop in ranges(nodes.count, _NUMBERS):
                    originals.append(np.arange(start, stop))
        write_new(temporary / DOCUMENT, document.model_dump_json(indent=1) + "\n")
    return _checked(open_partition(folder), SILENT)


def assign(graph: Graph, how: Cut, threads: int | None = None, progress: Progress = SILENT) -> Assigned:
    """The part of every vertex by the chosen method and refinement, and how good that is."""
    if how.method != AUTO:
        METHODS[how.method]
    check_cut(graph, how)
    threads, why = threads or default_threads(), None
    if how.method == AUTO:
        method, why = chosen(graph, how.parts, how.passes, threads)
        how = replace(how, method=method)
        progress.note(why)
    problem = _problem_of(graph, how, threads, progress)
    whole, names = problem.whole, list(how.balance) or default_names(problem.whole)
    if how.refine:
        check_table(problem)
    assignment = filled(problem, METHODS[how.method](problem)) if how.parts > 1 else np.zeros(whole.count, np.int32)
    if how.refine == "balanced" and how.parts > 1:
        with progress.step("balancing what parts send and receive"):
            assignment = balanced(problem, assignment)
    with progress.step("measuring"):
        # The usual constraints are reported whether or not they were asked for.
        usual = default_names(whole)
        unasked = not set(usual) <= set(names)
        reported = constraints_of(whole, list(dict.fromkeys([*usual, *names]))) if unasked else problem.constraints
        metrics = measure(whole, assignment, how.parts, reported)
    _note_imbalance(problem, metrics)
    return Assigned(how, why, problem, assignment, metrics)


def _problem_of(graph: Graph, how: Cut, threads: int, progress: Progress) -> Problem:
    whole = whole_of(graph)
    constraints = constraints_of(whole, list(how.balance) or default_names(whole))
    return Problem(whole, how.parts, constraints, how.tolerance, how.seed, how.passes, threads, progress)


def _note_imbalance(problem: Problem, metrics: Metrics) -> None:
    for name, ratio in metrics.balance.items():
        if name in problem.constraints.names and ratio > problem.tolerance + 1e-9:
            said = f"the largest is {ratio:.3f} of the mean, above {problem.tolerance:g}"
            problem.progress.note(f"Parts differ in {name}: {said}.")


# What is noted of a cut, so that the same command goes on after it was killed: the assignment, what trainers have,
# and each part once it is whole.

_ASSIGNMENT, _TRAINERS, _ORIGINALS = "assignment", "trainers", "original numbers"
_ABOUT = About("cut", "a cut of a graph folder")


def _steps_of(how: Cut) -> list[str]:
    """The steps that are noted, in their order."""
    trainers = [_TRAINERS] if how.trainers > 1 else []
    return [_ASSIGNMENT, *trainers, _ORIGINALS, *(_part_step(part) for part in range(how.parts))]


def _part_step(part: int) -> str:
    return f"part {part}"


def _sources_of(graph: Graph, how: Cut) -> Sources:
    """The options of a cut, and the files that a graph folder's arrays are mapped from."""
    files = set() if graph.path is None else {graph.path / GRAPH_DOCUMENT}
    files |= {Path(name) for name, *_ in (mapped_file(array) for _, array in graph.arrays()) if isinstance(name, str)}
    states = {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()}
    return Sources(
        json.dumps(asdict(how)),
        {name: list(states[name]) for name in sorted(states)},
        changed="the options have changed",
    )


def _noted_assignment(
    graph: Graph, how: Cut, threads: int | None, progress: Progress, work: Path, journal: FolderJournal
) -> Assigned:
    """The assignment that another process has noted, or one that is found and noted now."""
    path = work / "assignment.npy"
    if (state := journal.state(_ASSIGNMENT)) is None:
        assigned = assign(graph, how, threads, progress)
        if journal.is_kept:
            write_array(path, assigned.assignment)
            found = {"method": assigned.how.method, "chosen": assigned.chosen, "metrics": asdict(assigned.metrics)}
            journal.note(_ASSIGNMENT, found, [path])
        return assigned
    how, metrics = replace(how, method=state["method"]), Metrics(**state["metrics"])
    problem = _problem_of(graph, how, threads or default_threads(), progress)
    _note_imbalance(problem, metrics)
    return Assigned(how, state["chosen"], problem, np.array(open_array(path)), metrics)


def _noted_trainers(assigned: Assigned, work: Path, journal: FolderJournal) -> Array:
    """The trainer of every vertex, as another process has noted it, or found and noted now."""
    path = work / "trainers.npy"
    if journal.state(_TRAINERS) is not None:
        return np.array(open_array(path))
    trainer = assign_trainers(assigned.problem, assigned.assignment, assigned.how.trainers)
    if journal.is_kept and assigned.how.trainers > 1:
        write_array(path, trainer)
        journal.note(_TRAINERS, files=[path])
    return trainer


def _write_partition(assigned: Assigned, trainer: Array, folder: Path, journal: FolderJournal, mapped: Any) -> None:
    """The partition folder of an assignment, streamed part by part, or as `mapped` calls for each of them; what is
    noted is not written again.
    """
    problem, how = assigned.problem, assigned.how
    graph = problem.whole.graph
    maps = relabel(problem.whole, assigned.assignment, trainer, how.parts, how.trainers)
    folder.mkdir(exist_ok=True)
    if journal.state(_ORIGINALS) is None:
        with ArrayWriter(folder / "original.npy", np.int64) as originals:
            for relabelling in maps.values():
                originals.append(relabelling.original)
        journal.note(_ORIGINALS, files=[folder / "original.npy"])
    with problem.progress.step("writing parts", graph.num_edges, "edges"):
        folders = {part: part_folder(folder, part) for part in range(how.parts)}
        if mapped is not None:
            missing = {part: path for part, path in folders.items() if journal.state(_part_step(part)) is None}
            for part, counts in write_parts(graph, maps, how.trainers, folder, missing, mapped, journal.owner):
                _note_part(part, missing[part], counts, journal)
        writer = PartWriter(graph, maps, how.trainers, problem.threads, problem.progress)
        written = [_noted_part(writer, part, path, journal) for part, path in folders.items()]
    shares = trainer_balance(problem, assigned.assignment, trainer, how.trainers)
    document = _document(assigned, maps, written, shares)
    write_new(folder / DOCUMENT, json.dumps(document.model_dump(), indent=1) + "\n")


def _noted_part(writer: PartWriter, part: int, folder: Path, journal: FolderJournal) -> dict[EdgeType, int]:
    """Write a part unless it is noted as whole; returns how many edges of each type it has."""
    document = folder / GRAPH_DOCUMENT
    if (state := journal.state(_part_step(part))) is not None:
        # The journal proves arrays alone, and so keeps the document itself.
        write_whole(document, state["document"])
        counts = [state["edges"][edge_key(kind)] for kind in writer.graph.edges]
        writer.progress.advance(sum(counts))
        return dict(zip(writer.graph.edges, counts, strict=True))
    written = writer.write(part, folder)
    if journal.is_kept:
        _note_part(part, folder, written, journal)
    return written


def _note_part(part: int, folder: Path, written: dict[EdgeType, int], journal: FolderJournal) -> None:
    edges = {edge_key(kind): count for kind, count in written.items()}
    state = {"document": read_document(folder / GRAPH_DOCUMENT), "edges": edges}
    journal.note(_part_step(part), state, sorted(folder.rglob("*.npy")))


def _checked(partition: Partition, progress: Progress) -> Partition:
    """Validate what was written while it is in memory: training then finds it checked."""
    with progress.step("checking parts"):
        for part in range(partition.parts):
            check_graph(partition.part(part))
        for name in partition.book.node_types:
            partition.original(name)
    return partition


def check_cut(graph: Graph, how: Cut) -> None:
    """Refuse choices that no method can carry out on this graph."""
    if how.parts < 1 or how.trainers < 1:
        raise PenstockError("--parts and --trainers must be at least 1.", code="value-out-of-range")
    if how.parts * how.trainers > graph.num_nodes:
        wanted = f"{how.parts} parts" + (f" x {how.trainers} trainers" if how.trainers > 1 else "")
        raise PenstockError(
            f"Graph {graph.name!r} has {graph.num_nodes:,} vertices, fewer than {wanted}: ask for fewer.",
            code="value-out-of-range",
        )
    if how.passes < 1:
        raise PenstockError("--passes must be at least 1.", code="value-out-of-range")
    if not 1 < how.tolerance <= 2:
        raise PenstockError(
            f"--tolerance {how.tolerance:g} is out of range: give a ratio above 1 and up to 2, such as 1.05.",
            code="value-out-of-range",
        )
    if how.refine is not None and how.refine not in REFINEMENTS:
        raise PenstockError(
            f"There is no refinement {how.refine!r}: use one of {', '.join(REFINEMENTS)}.", code="unknown-name"
        )


def _document(
    assigned: Assigned,
    maps: dict[str, Relabelling],
    written: list[dict[EdgeType, int]],
    shares: dict[str, float],
) -> PartitionDocument:
    graph, how = assigned.problem.whole.graph, assigned.how
    types, offset = {}, 0
    for name, relabelling in maps.items():
        count = graph.nodes[name].count
        starts = relabelling.bounds.tolist()
        step = how.trainers
        ranges = [starts[part * step : (part + 1) * step + 1] for part in range(how.parts)]
        types[name] = TypeRanges(count=count, original_offset=offset, ranges=ranges)
        offset += count
    return PartitionDocument(
        graph=graph.name,
        origin=graph.origin,
        method=how.method,
        chosen=assigned.chosen,
        refine=how.refine,
        parts=how.parts,
        trainers=how.trainers,
        seed=how.seed,
        balance=assigned.problem.constraints.names,
        tolerance=how.tolerance,
        node_types=types,
        edge_ranges={
            edge_key(kind): list(accumulate((counts[kind] for counts in written), initial=0)) for kind in graph.edges
        },
        metrics=assigned.metrics.document(),
        trainer_balance=shares,
    )


# The part of every vertex before anything is written: from a partition folder, or by cutting the graph.


def parts_of(graph: Graph, folder: str | None, parts: int, method: str) -> Array:
    """int64: the part of every vertex, type after type: from the folder's partition, or as a run would partition it."""
    if folder is None:
        return cut_into(graph, parts, method)
    partition = open_partition(folder)
    if partition.parts != parts:
        raise PenstockError(
            f"{folder} has {partition.parts} parts and the cluster {parts} machines: a plan needs one part"
            " for each machine; cut the graph into as many parts.",
            code="mismatched-inputs",
        )
    found = []
    for name in graph.node_types:
        original = np.asarray(partition.original(name))
        part_of = np.empty(len(original), np.int64)
        part_of[original] = partition.book.owner(np.arange(len(original)), name)
        found.append(part_of)
    return np.concatenate(found)


def cut_into(graph: Graph, parts: int, method: str) -> Array:
    """The part of every vertex of a graph that is partitioned with the usual constraints."""
    if parts == 1:
        return np.zeros(graph.num_nodes, np.int64)
    return assign(graph, Cut(parts, method=method), progress=SILENT).assignment
