"""`partition.json`: what a partition folder says about itself."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument, read_checked
from penstock.partition.book import Book

FORMAT = "penstock-partition"
VERSION = 1
DOCUMENT = "partition.json"


class TypeRanges(StrictDocument):
    """New IDs of one node type: `ranges[part]` are the trainers + 1 bounds of its sub-parts."""

    count: int
    original_offset: int = Field(description="where this type starts in original.npy")
    ranges: list[list[int]]


class PartitionDocument(StrictDocument):
    """The whole of `partition.json`."""

    format: str = FORMAT
    version: int = VERSION
    graph: str
    origin: dict[str, Any] = Field(default_factory=dict)
    method: str
    refine: str | None = None
    parts: int
    trainers: int
    seed: int
    balance: list[str]
    tolerance: float
    node_types: dict[str, TypeRanges]
    metrics: dict[str, Any]
    trainer_balance: dict[str, float] = Field(description="largest trainer's share over its part's mean, worst part")

    def book(self) -> Book:
        """Owner and local lookups."""
        bounds = {}
        for name, info in self.node_types.items():
            starts = [bound for part in info.ranges for bound in part[:-1]]
            found = np.array([*starts, info.count], np.int64)
            joined = all(a[-1] == b[0] for a, b in pairwise(info.ranges))
            if len(found) != self.parts * self.trainers + 1 or found[0] or (np.diff(found) < 0).any() or not joined:
                raise PenstockError(
                    f"{DOCUMENT}: the ranges of {name!r} do not cover its vertices: cut the graph again."
                )
            bounds[name] = found
        return Book(self.parts, self.trainers, bounds)


def read_partition_document(folder: Path) -> PartitionDocument:
    """`partition.json` of a folder, checked."""
    return read_checked(folder / DOCUMENT, PartitionDocument, FORMAT, VERSION)
