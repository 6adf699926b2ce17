"""Tables whose rows have a relation each: from one spool to an edge type for every relation."""

import shutil
from pathlib import Path

import numpy as np

from penstock.graph.arrays import Array, open_array, write_array
from penstock.graph.csr import build_lists, deduplicate_lists
from penstock.graph.data import EdgeSet
from penstock.graph.folder import edges_folder, write_held_out
from penstock.graph.schema import EdgeType, edge_key, relation_names
from penstock.graph.tables.spool import Spool
from penstock.progress import Progress


def write_relations(spool: Spool, folder: Path, progress: Progress) -> dict[EdgeType, EdgeSet]:
    """The lists of every relation that the table names, with what is held out of it, and of its reverse if wanted."""
    spec, count = spool.spec, len(spool.words)
    sources, destinations = open_array(spool.sources.path), open_array(spool.destinations.path)
    places = _by_relation(open_array(spool.relations["train"].path), count)
    apart = {
        name: (open_array(writer.path), _by_relation(open_array(spool.relations[name].path), count))
        for name, writer in spool.held_out.items()
    }
    made: dict[EdgeType, EdgeSet] = {}
    with progress.step(f"{edge_key(spec.type)}: lists", len(sources), "edges"):
        for number, name in enumerate(relation_names(list(spool.words))):
            some = places[number]
            held_out = {split: np.asarray(pairs[rows[number]]) for split, (pairs, rows) in apart.items()}
            ends = spool.ends[0].count, spool.ends[1].count
            kind = spec.type[0], name, spec.type[2]
            lists = np.ascontiguousarray(sources[some]), np.ascontiguousarray(destinations[some])
            made[kind] = _write(lists, ends, spec.deduplicate, held_out, edges_folder(folder, kind))
            if spec.reverse:
                reverse = kind[2], f"rev-{name}", kind[0]
                made[reverse] = _write(
                    (lists[1], lists[0]), (ends[1], ends[0]), spec.deduplicate, {}, edges_folder(folder, reverse)
                )
            progress.advance(len(some))
    shutil.rmtree(spool.folder, ignore_errors=True)
    return made


def _by_relation(codes: Array, count: int) -> list[Array]:
    """The rows of each relation, in their order."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.searchsorted(codes[order], np.arange(1, max(count, 1))))


def _write(
    ends: tuple[Array, Array], counts: tuple[int, int], deduplicate: bool, held_out: dict[str, Array], target: Path
) -> EdgeSet:
    indptr, indices, _ = build_lists(*ends, *counts, False)
    if deduplicate:
        indptr, indices, _ = deduplicate_lists(indptr, indices)
    write_array(target / "indptr.npy", indptr)
    write_array(target / "indices.npy", indices)
    write_held_out(held_out, target)
    return EdgeSet(
        open_array(target / "indptr.npy"),
        open_array(target / "indices.npy"),
        {},
        {name: open_array(target / f"held_out.{name}.npy") for name in held_out},
    )
