"""Cutting graphs: which vertex goes to which part, and the folder that says so.

`methods` decide, `refine` improves, `metrics` judges, `writer` carries out; `owners` answers afterwards which part a
vertex belongs to.
"""

from penstock.partition.assignment import Assigned, Cut, assign, cut
from penstock.partition.folder import Partition, open_partition
from penstock.partition.metrics import Metrics, measure
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
