"""Cutting a graph, from the question to the folder."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, ArrayWriter
from penstock.graph.atomic import check_target, new_folder
from penstock.graph.blocks import default_threads
from penstock.graph.graph import Graph
from penstock.partition.constraints import constraints_of, default_names
from penstock.partition.document import DOCUMENT, PartitionDocument, TypeRanges
from penstock.partition.folder import Partition, open_partition, part_folder
from penstock.partition.levels import assign_trainers
from penstock.partition.methods import method_named
from penstock.partition.metrics import Metrics, measure
from penstock.partition.problem import Problem
from penstock.partition.refine import balanced
from penstock.partition.relabel import Relabelling, relabel
from penstock.partition.whole import whole_of
from penstock.partition.writer import write_part
from penstock.progress import SILENT, Progress

REFINEMENTS = ("balanced",)


@dataclass(frozen=True)
class Cut:
    """How to cut: the choices of `penstock partition`."""

    parts: int
    trainers: int = 1
    method: str = "metis"
    refine: str | None = None
    balance: tuple[str, ...] = ()
    """Constraints by name; empty: vertices, edges, and train where there is one."""
    tolerance: float = 1.05
    seed: int = 0
    passes: int = 1
    """How often `stream` reads the graph."""


@dataclass(frozen=True)
class Assigned:
    """An assignment with its measure, not yet written."""

    problem: Problem
    assignment: Array
    metrics: Metrics


def partition(
    graph: Graph,
    cut: Cut,
    folder: str | Path,
    force: bool = False,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> Partition:
    """Assign, split for trainers, relabel and write."""
    folder = Path(folder)
    check_target(folder, force)
    assigned = assign(graph, cut, threads, progress)
    trainer = assign_trainers(assigned.problem, assigned.assignment, cut.trainers)
    return write_partition(assigned, cut, trainer, folder, force)


def assign(graph: Graph, cut: Cut, threads: int | None = None, progress: Progress = SILENT) -> Assigned:
    """The part of every vertex by the chosen method and refinement, and how good that is."""
    method = method_named(cut.method)
    _check(graph, cut)
    whole = whole_of(graph)
    names = list(cut.balance) or default_names(whole)
    problem = Problem(
        whole,
        cut.parts,
        constraints_of(whole, names),
        cut.tolerance,
        cut.seed,
        cut.passes,
        threads or default_threads(),
        progress,
    )
    assignment = method(problem) if cut.parts > 1 else np.zeros(whole.count, np.int32)
    if cut.refine == "balanced" and cut.parts > 1:
        with progress.step("balancing what parts send and receive"):
            assignment = balanced(problem, assignment)
    with progress.step("measuring"):
        # The usual constraints are reported whether or not they were asked for.
        reported = constraints_of(whole, list(dict.fromkeys([*default_names(whole), *names])))
        metrics = measure(whole, assignment, cut.parts, reported)
    for name, ratio in metrics.balance.items():
        if name in problem.constraints.names and ratio > cut.tolerance + 1e-9:
            progress.note(f"Parts differ in {name}: the largest is {ratio:.3f} of the mean, above {cut.tolerance:g}.")
    return Assigned(problem, assignment, metrics)


def write_partition(assigned: Assigned, cut: Cut, trainer: Array, folder: Path, force: bool = False) -> Partition:
    """The partition folder of an assignment, streamed part by part."""
    problem = assigned.problem
    graph = problem.whole.graph
    maps = relabel(problem.whole, assigned.assignment, trainer, cut.parts, cut.trainers)
    with new_folder(folder, force) as temporary:
        with ArrayWriter(temporary / "original.npy", np.int64) as writer:
            for relabelling in maps.values():
                writer.append(relabelling.original)
        with problem.progress.step("writing parts", graph.num_edges, "edges"):
            for part in range(cut.parts):
                target = part_folder(temporary, part)
                write_part(graph, maps, part, cut.trainers, target, problem.threads, problem.progress)
        document = _document(assigned, cut, maps)
        (temporary / DOCUMENT).write_text(json.dumps(document.model_dump(), indent=1) + "\n")
    return open_partition(folder)


def _check(graph: Graph, cut: Cut) -> None:
    if cut.parts < 1 or cut.trainers < 1:
        raise PenstockError("--parts and --trainers must be at least 1.")
    if cut.parts == 1 and cut.trainers == 1:
        raise PenstockError(
            "--parts 1 cuts nothing: use the graph folder as it is, ask for more parts, or add --trainers."
        )
    if cut.parts * cut.trainers > graph.num_nodes:
        wanted = f"{cut.parts} parts" + (f" x {cut.trainers} trainers" if cut.trainers > 1 else "")
        raise PenstockError(
            f"Graph {graph.name!r} has {graph.num_nodes:,} vertices, fewer than {wanted}: ask for fewer."
        )
    if cut.passes < 1:
        raise PenstockError("--passes must be at least 1.")
    if not 1 < cut.tolerance <= 2:
        raise PenstockError(
            f"--tolerance {cut.tolerance:g} is out of range: give a ratio above 1 and up to 2, such as 1.05."
        )
    if cut.refine is not None and cut.refine not in REFINEMENTS:
        raise PenstockError(f"There is no refinement {cut.refine!r}: there is {', '.join(REFINEMENTS)}.")


def _document(assigned: Assigned, cut: Cut, maps: dict[str, Relabelling]) -> PartitionDocument:
    graph = assigned.problem.whole.graph
    types, offset = {}, 0
    for name, relabelling in maps.items():
        count = graph.nodes[name].count
        starts = relabelling.bounds.tolist()
        step = cut.trainers
        ranges = [starts[part * step : (part + 1) * step + 1] for part in range(cut.parts)]
        types[name] = TypeRanges(count=count, original_offset=offset, ranges=ranges)
        offset += count
    return PartitionDocument(
        graph=graph.name,
        origin=graph.origin,
        method=cut.method,
        refine=cut.refine,
        parts=cut.parts,
        trainers=cut.trainers,
        seed=cut.seed,
        balance=assigned.problem.constraints.names,
        tolerance=cut.tolerance,
        node_types=types,
        metrics=assigned.metrics.document(),
    )
