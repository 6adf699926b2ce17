"""Partitioning graphs: which vertex goes to which part, and the partition folder.

`assignment` goes through all steps: `methods/` decide on a `problem`, `refine` improves the result, its quality is
measured, parts are divided among trainers, and `writer` writes them. `folder` opens the parts, `owners` answers which
part a vertex belongs to, and `stitch` restores the whole graph. `bins` divides vertices into bins for training on the
whole graph.
"""

from penstock.partition.assignment import Assigned, Cut, Metrics, assign, cut, measure
from penstock.partition.folder import Partition, open_partition
from penstock.partition.owners import Book
from penstock.partition.stitch import stitch

__all__ = [
    "Assigned",
    "Book",
    "Cut",
    "Metrics",
    "Partition",
    "assign",
    "cut",
    "measure",
    "open_partition",
    "stitch",
]
