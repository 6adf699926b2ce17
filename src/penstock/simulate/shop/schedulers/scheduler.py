"""What a scheduler of job shops is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.graph.documents import StrictDocument
from penstock.simulate.shop.schedule import Schedule
from penstock.simulate.shop.shop import Shop


class NoOptions(StrictDocument):
    """Nothing can be chosen."""


@dataclass(frozen=True)
class Scheduler:
    """One way to schedule: `schedule(shop, options)`."""

    name: str
    schedule: Callable[[Shop, Any], Schedule]
    options: type[StrictDocument] = NoOptions
