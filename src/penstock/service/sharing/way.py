"""What a way of sharing devices has to say and to do."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from penstock.service.rooms import Room
from penstock.service.workers.pool import WarmPool
from penstock.service.workers.starter import Starter


@dataclass(frozen=True)
class Sharing:
    """Devices, with what processes must be told to use them, and who starts jobs there."""

    rooms: list[Room]
    trainers: Starter


class SharingWay(Protocol):
    """A way in which several jobs use one device at once."""

    name: str

    def lacks(self, folder: Path, rooms: list[Room]) -> str | None:
        """What is missing here for this way, as part of a sentence; None where nothing is."""

    def opened(self, stack: ExitStack, folder: Path, rooms: list[Room], pool: WarmPool) -> Sharing:
        """Prepare this way in the service's folder; what is started for it is ended with `stack`."""
