"""The critical path by kind: what the time went to, and which links were waited for."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.quantities import percent
from penstock.simulate import CriticalStep

_MOST_NAMED = 5
_LEAST_NAMED = 0.005  # of the time


class KindShare(NamedTuple):
    """What one kind of task or flow takes of the critical path."""

    kind: str
    steps: int
    seconds: float
    waited: float  # seconds of it in which others had the links
    waited_for: str  # the link most of that time was waited for; empty where there was no wait


def path_by_kind(path: Sequence[CriticalStep]) -> list[KindShare]:
    """The kinds on the path, longest first."""
    kinds: dict[str, list[CriticalStep]] = {}
    for step in path:
        kinds.setdefault(step.kind, []).append(step)
    found = []
    for kind, steps in kinds.items():
        links: dict[str, float] = {}
        for step in steps:
            if step.waited:
                links[step.waited_for] = links.get(step.waited_for, 0.0) + step.waited
        spent = sum(step.end - step.start for step in steps)
        worst = max(links, key=lambda link: links[link]) if links else ""
        found.append(KindShare(kind, len(steps), spent, sum(links.values()), worst))
    return sorted(found, key=lambda each: -each.seconds)


def path_sentence(shares: Sequence[KindShare]) -> str:
    """In words: `sampler 62 %, pull 30 % (18 % waiting, mostly for m0 out), worker 8 %`."""
    total = sum(each.seconds for each in shares)
    if not total:
        return "Nothing took any time."
    parts = []
    named = [each for each in shares[:_MOST_NAMED] if each.seconds >= _LEAST_NAMED * total]
    for each in named:
        waited = each.waited / total
        wait = f" ({percent(waited)} waiting, mostly for {each.waited_for})" if waited >= _LEAST_NAMED else ""
        parts.append(f"{each.kind} {percent(each.seconds / total)}{wait}")
    more = len(shares) - len(named)
    return ", ".join(parts) + (f", and {more} more" if more > 0 else "")
