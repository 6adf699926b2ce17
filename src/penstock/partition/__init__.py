"""Partitioning graphs: which vertex goes to which part, and the partition folder.

`assignment` goes through all steps: `methods/` decide on a `problem`, `refine` improves the result, its quality is
measured, parts are divided among trainers, and `writer` writes them. `folder` opens the parts and restores the whole
graph of them, and `owners` answers which part a vertex belongs to. `bins` divides vertices into bins for training on
the whole graph.
"""

from typing import TYPE_CHECKING

from penstock.registry import lazy_names

if TYPE_CHECKING:
    from penstock.partition.assignment import Assigned, Cut, Metrics, assign, cut, measure, uncut
    from penstock.partition.folder import Partition, open_partition, stitch
    from penstock.partition.owners import Book

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
    "uncut",
]

# Looked up on first use: help lists the methods, and waits for no kernels.
__getattr__, __dir__ = lazy_names(__name__)
