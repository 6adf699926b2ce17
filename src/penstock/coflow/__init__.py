"""Coflows: communication that belongs together, scheduled and sent.

- `matching/`: an all-to-all of known sizes as phases without contention; a schedule a file. Knows no network.
- `turns`: the phases as one rank sees them, cut at whole rows.
- `exchange`: `all_to_all` over torch.distributed, phase by phase. Its torch is imported when it is asked for.
"""

from typing import TYPE_CHECKING

from penstock.coflow.matching import SCHEDULES, Phase, bound, schedule, seconds
from penstock.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.coflow.exchange import all_to_all

__all__ = ["SCHEDULES", "Phase", "all_to_all", "bound", "schedule", "seconds"]

__getattr__ = lazy_names(__name__, {"penstock.coflow.exchange": ("all_to_all",)})
