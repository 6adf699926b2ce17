"""Partitioning a graph, from the options to the folder."""

import json
import os
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, ArrayWriter, release_pages
from penstock.graph.atomic import check_target, new_folder
from penstock.graph.blocks import default_threads
from penstock.graph.graph import Graph
from penstock.graph.integrity import check_graph
from penstock.graph.output_files import write_new
from penstock.graph.schema import EdgeType, edge_key
from penstock.partition.document import DOCUMENT, PartitionDocument, TypeRanges
from penstock.partition.folder import Partition, open_partition, part_folder
from penstock.partition.levels import assign_trainers, trainer_balance
from penstock.partition.methods import method_named
from penstock.partition.metrics import Metrics, measure
from penstock.partition.problem import Problem, constraints_of, default_names
from penstock.partition.refine import balanced, filled
from penstock.partition.refine.exchange import check_table
from penstock.partition.whole import whole_of
from penstock.partition.writer import PartWriter, Relabelling, relabel
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


def cut(
    graph: Graph,
    how: Cut,
    folder: str | os.PathLike[str],
    force: bool = False,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> Partition:
    """Assign, split for trainers, relabel and write."""
    folder = Path(folder)
    check_target(folder, force)
    if graph.path is not None and folder.resolve() == graph.path.resolve():
        raise PenstockError(
            f"{folder} is the graph that is being cut: name another folder for its parts.", code="file-exists"
        )
    assigned = assign(graph, how, threads, progress)
    trainer = assign_trainers(assigned.problem, assigned.assignment, how.trainers)
    return write_partition(assigned, how, trainer, folder, force)


def assign(graph: Graph, how: Cut, threads: int | None = None, progress: Progress = SILENT) -> Assigned:
    """The part of every vertex by the chosen method and refinement, and how good that is."""
    method = method_named(how.method)
    _check(graph, how)
    whole = whole_of(graph)
    names = list(how.balance) or default_names(whole)
    problem = Problem(
        whole,
        how.parts,
        constraints_of(whole, names),
        how.tolerance,
        how.seed,
        how.passes,
        threads or default_threads(),
        progress,
    )
    if how.refine:
        check_table(problem)
    assignment = filled(problem, method(problem)) if how.parts > 1 else np.zeros(whole.count, np.int32)
    if how.refine == "balanced" and how.parts > 1:
        with progress.step("balancing what parts send and receive"):
            assignment = balanced(problem, assignment)
    with progress.step("measuring"):
        # The usual constraints are reported whether or not they were asked for.
        usual = default_names(whole)
        unasked = not set(usual) <= set(names)
        reported = constraints_of(whole, list(dict.fromkeys([*usual, *names]))) if unasked else problem.constraints
        metrics = measure(whole, assignment, how.parts, reported)
    for name, ratio in metrics.balance.items():
        if name in problem.constraints.names and ratio > how.tolerance + 1e-9:
            progress.note(f"Parts differ in {name}: the largest is {ratio:.3f} of the mean, above {how.tolerance:g}.")
    return Assigned(problem, assignment, metrics)


def write_partition(assigned: Assigned, how: Cut, trainer: Array, folder: Path, force: bool = False) -> Partition:
    """The partition folder of an assignment, streamed part by part."""
    problem = assigned.problem
    graph = problem.whole.graph
    maps = relabel(problem.whole, assigned.assignment, trainer, how.parts, how.trainers)
    with new_folder(folder, force) as temporary:
        with ArrayWriter(temporary / "original.npy", np.int64) as originals:
            for relabelling in maps.values():
                originals.append(relabelling.original)
        with problem.progress.step("writing parts", graph.num_edges, "edges"):
            writer = PartWriter(graph, maps, how.trainers, problem.threads, problem.progress)
            written = [writer.write(part, part_folder(temporary, part)) for part in range(how.parts)]
        shares = trainer_balance(problem, assigned.assignment, trainer, how.trainers)
        document = _document(assigned, how, maps, written, shares)
        write_new(temporary / DOCUMENT, json.dumps(document.model_dump(), indent=1) + "\n")
    for _, array in graph.arrays():
        # Pages of the whole graph would count beside those of the parts that are read now.
        release_pages(array)
    return _checked(open_partition(folder), problem.progress)


def _checked(partition: Partition, progress: Progress) -> Partition:
    """Read what was written once more, while it is in memory: who trains on it finds it checked."""
    with progress.step("checking parts"):
        for part in range(partition.parts):
            check_graph(partition.part(part))
        for name in partition.book.node_types:
            partition.original(name)
    return partition


def _check(graph: Graph, how: Cut) -> None:
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
    how: Cut,
    maps: dict[str, Relabelling],
    written: list[dict[EdgeType, int]],
    shares: dict[str, float],
) -> PartitionDocument:
    graph = assigned.problem.whole.graph
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
