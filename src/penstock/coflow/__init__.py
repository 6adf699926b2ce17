"""Coflows: communication that belongs together, scheduled and sent.

`matching` turns an all-to-all of known sizes into phases without contention, and has the table of schedules; it knows
no network. `exchange` is `all_to_all` over torch.distributed, phase by phase, each cut at whole rows; torch is imported
when it is used.
"""

from typing import TYPE_CHECKING

from penstock.coflow.matching import SCHEDULES, Phase, bound, schedule, seconds
from penstock.registry import lazy_names

if TYPE_CHECKING:
    from penstock.coflow.exchange import all_to_all

__all__ = ["SCHEDULES", "Phase", "all_to_all", "bound", "schedule", "seconds"]

__getattr__, __dir__ = lazy_names(__name__)
