"""`partition.json`: what a partition folder says about itself."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.documents import StrictDocument, read_checked
from penstock.graph.schema import check_name
from penstock.partition.owners import Book

FORMAT = "penstock-partition"
VERSION = 1
DOCUMENT = "partition.json"


class TypeRanges(StrictDocument):
    """New IDs of one node type: `ranges[part]` are the trainers + 1 bounds of its sub-parts."""

    count: int = Field(ge=0)
    original_offset: int = Field(ge=0, description="where this type starts in original.npy")
    ranges: list[list[int]]


class PartitionDocument(StrictDocument):
    """The content of `partition.json`."""

    format: str = FORMAT
    version: int = VERSION
    graph: str
    origin: dict[str, Any] = Field(default_factory=dict)
    method: str
    refine: str | None = None
    parts: int = Field(ge=1)
    trainers: int = Field(ge=1)
    seed: int
    balance: list[str]
    tolerance: float
    node_types: dict[str, TypeRanges]
    edge_ranges: dict[str, list[int]] | None = Field(
        None, description="by relation, the number of each part's first edge, and of all edges; older folders: none"
    )
    metrics: dict[str, Any]
    trainer_balance: dict[str, float] = Field(description="largest trainer's share over its part's mean, worst part")

    def book(self) -> Book:
        """The book that looks up owners and local numbers."""
        bounds = {}
        for name, info in self.node_types.items():
            starts = [bound for part in info.ranges for bound in part[:-1]]
            shaped = len(info.ranges) == self.parts and all(len(part) == self.trainers + 1 for part in info.ranges)
            joined = shaped and all(a[-1] == b[0] for a, b in pairwise([*info.ranges, [info.count]]))
            if not joined or starts[0] or any(b < a for a, b in pairwise([*starts, info.count])):
                raise PenstockError(
                    f"{DOCUMENT}: the ranges of {name!r} do not cover its vertices: cut the graph again.",
                    code="damaged-file",
                )
            bounds[name] = np.array([*starts, info.count], np.int64)
        return Book(self.parts, self.trainers, bounds, self._edge_bounds())

    def _edge_bounds(self) -> dict[str, Array] | None:
        if self.edge_ranges is None:
            return None
        for name, starts in self.edge_ranges.items():
            if len(starts) != self.parts + 1 or starts[0] or any(b < a for a, b in pairwise(starts)):
                raise PenstockError(
                    f"{DOCUMENT}: the ranges of {name!r} do not cover its edges: cut the graph again.",
                    code="damaged-file",
                )
        return {name: np.array(starts, np.int64) for name, starts in self.edge_ranges.items()}


def read_partition_document(folder: Path) -> PartitionDocument:
    """`partition.json` of a folder, checked: names are file names, and types follow each other in original.npy."""
    document = read_checked(folder / DOCUMENT, PartitionDocument, FORMAT, VERSION)
    offset = 0
    for name, info in document.node_types.items():
        try:
            check_name(name, "Node type")
        except PenstockError as error:
            raise PenstockError(f"{folder / DOCUMENT}: {error}", code=error.code) from None
        if info.original_offset != offset:
            raise PenstockError(
                f"{folder / DOCUMENT}: {name!r} starts at {info.original_offset} in original.npy, where the types"
                f" before it end at {offset}: cut the graph again.",
                code="damaged-file",
            )
        offset += info.count
    return document
