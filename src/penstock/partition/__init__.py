"""Cutting graphs: which vertex goes to which part, and the folder that says so.

`methods` decide, `refine` improves, `metrics` judges, `writer` carries out, `book` answers questions afterwards and
`owners` groups vertices by the part that owns them.
"""

from penstock.partition.assignment import Assigned, Cut, assign, cut
from penstock.partition.book import Book
from penstock.partition.folder import Partition, open_partition
from penstock.partition.metrics import Metrics, measure
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
