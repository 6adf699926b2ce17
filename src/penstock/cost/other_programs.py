"""How much of the cores other programs used while something was measured, which then took longer than by itself."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")
NOTICED = 0.1
"""Share of the cores from which others are worth a warning."""
_FIELDS = 8
"""Of the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. Guests are in the first."""


class CpuTimes(NamedTuple):
    """Seconds of all cores since the machine started, and of this process with its children that have ended."""

    total: float
    idle: float
    own: float


def cpu_times() -> CpuTimes | None:
    """The times of this moment; None where the system does not tell."""
    used = os.times()
    with suppress(OSError, ValueError):
        ticks = [int(word) for word in STAT.read_text().splitlines()[0].split()[1 : 1 + _FIELDS]]
        if len(ticks) == _FIELDS:
            second = os.sysconf("SC_CLK_TCK")
            return CpuTimes(sum(ticks) / second, (ticks[3] + ticks[4]) / second, sum(used[:4]))
    return None


def share_of_others(start: CpuTimes | None, end: CpuTimes | None) -> float:
    """The share of all cores that other programs, or other virtual machines, used in between; 0 where none is known."""
    if start is None or end is None or end.total <= start.total:
        return 0.0
    total, idle, own = (later - before for before, later in zip(start, end, strict=True))
    return min(1.0, max(0.0, (total - idle - own) / total))


def others_warning(share: float) -> list[str]:
    """A sentence where others used so much of the cores that measurements suffered from it."""
    if share < NOTICED:
        return []
    return [
        f"Other programs used {100 * share:.0f} % of the cores meanwhile, so operators seem slower than they are:"
        " measure again with --refit when the machine is idle"
    ]
