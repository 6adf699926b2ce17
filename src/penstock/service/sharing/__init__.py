"""How jobs share a device: one file for each way.

`SHARING` is the table of contents. A new way is one file and one line here (docs/queue.md).
"""

from contextlib import ExitStack
from pathlib import Path

from penstock.errors import PenstockError, nearest
from penstock.service.rooms import Room
from penstock.service.sharing.mps import Mps
from penstock.service.sharing.streams import Streams
from penstock.service.sharing.time_slices import TimeSlices
from penstock.service.sharing.way import Sharing, SharingWay
from penstock.service.workers.pool import WarmPool

SHARING: dict[str, SharingWay] = {way.name: way for way in (Mps(), TimeSlices(), Streams())}
"""The ways by name; `auto` is the first one that can be had."""
AUTO = "auto"

__all__ = ["AUTO", "SHARING", "Sharing", "SharingWay", "shared_devices"]


def shared_devices(name: str, stack: ExitStack, folder: Path, rooms: list[Room], pool: WarmPool) -> Sharing:
    """The devices as jobs share them in the way of that name; what was started for it is ended with `stack`."""
    if name == AUTO:
        way = next(way for way in SHARING.values() if way.lacks(folder, rooms) is None)
    elif name in SHARING:
        way = SHARING[name]
    else:
        known = [AUTO, *SHARING]
        raise PenstockError(f"No way of sharing a device is called {name!r}{nearest(name, known)}", code="unknown-name")
    lacks = way.lacks(folder, rooms)
    if lacks is not None:
        others = " or ".join(each for each in SHARING if each != name)
        raise PenstockError(f"--sharing {name} cannot be used: {lacks}. Use {others}.", code="not-installed")
    return way.opened(stack, folder, rooms, pool)
