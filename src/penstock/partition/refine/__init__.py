"""Local search on a finished assignment: into balance, less volume in total, less for the busiest part."""

from penstock.partition.refine.balanced import balanced
from penstock.partition.refine.repair import filled, repaired
from penstock.partition.refine.volume import less_volume

__all__ = ["balanced", "filled", "less_volume", "repaired"]
