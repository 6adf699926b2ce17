"""From a spool of edges to in-neighbour lists on disk, the fields in the same order."""

from pathlib import Path

import numpy as np

from penstock.graph.arrays import Array, ArrayWriter, open_array, release_pages, write_array
from penstock.graph.blocks import map_blocks
from penstock.graph.csr import build_lists, deduplicate_lists
from penstock.graph.data import EdgeSet
from penstock.graph.folder import write_held_out
from penstock.graph.schema import file_name
from penstock.graph.tables.spool import Spool

_BLOCK_BYTES = 8 << 20


def write_lists(spool: Spool, target: Path, backwards: bool = False) -> EdgeSet:
    """The edges of a spool sorted into lists; backwards: each the other way round, and nothing held out."""
    source, destination = spool.ends
    sources, destinations = open_array(spool.sources.path), open_array(spool.destinations.path)
    if backwards:
        source, destination, sources, destinations = destination, source, destinations, sources
    fields = spool.fields.finish()
    indptr, indices, order = build_lists(sources, destinations, source.count, destination.count, bool(fields))
    release_pages(sources)
    release_pages(destinations)
    if spool.spec.deduplicate:
        indptr, indices, kept = deduplicate_lists(indptr, indices)
        order = None if order is None else order[kept]
    write_array(target / "indptr.npy", indptr)
    write_array(target / "indices.npy", indices)
    if order is not None:
        if spool.rows is not None:
            order = open_array(spool.rows.path)[order]
        fields = {name: _reordered(name, values, order, target) for name, values in fields.items()}
    held_out = {} if backwards else {name: open_array(writer.path) for name, writer in spool.held_out.items()}
    write_held_out(held_out, target)
    return EdgeSet(
        open_array(target / "indptr.npy"),
        open_array(target / "indices.npy"),
        fields,
        {name: open_array(target / f"held_out.{name}.npy") for name in held_out},
        spool.fields.categories(),
    )


def _reordered(name: str, values: Array, order: Array, target: Path) -> Array:
    """A field's rows in the order of the lists, gathered block by block."""
    path = target / f"field.{file_name(name)}.npy"
    block_rows = max(1, _BLOCK_BYTES // max(1, values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))))

    def gather(start: int, stop: int) -> Array:
        rows: Array = np.take(values, order[start:stop], axis=0)
        return rows

    with ArrayWriter(path, values.dtype, values.shape[1:]) as writer:
        for block in map_blocks(gather, len(order), block_rows):
            writer.append(block)
    release_pages(values)
    return open_array(path)
