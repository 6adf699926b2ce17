"""Which path a request must take because of one in progress: a table of open requests by address or message."""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.inline_kernels import inner
from penstock.paths.route_table import DEPENDENCIES, Routes
from penstock.paths.rules.families import path_like

_NONE, _MESSAGE = DEPENDENCIES.index("none"), DEPENDENCIES.index("message")


class InProgress(NamedTuple):
    """Requests in progress by group: an address or a message."""

    requests: Array  # int32 [groups]
    writers: Array  # int32 [groups]
    label: Array  # int32 [groups]: of the path that the last writer took, or the last request where nobody writes


def nothing_in_progress(groups: int) -> InProgress:
    """An empty table for so many groups."""
    return InProgress(np.zeros(groups, np.int32), np.zeros(groups, np.int32), np.zeros(groups, np.int32))


@inner
def forced_path(routes: Routes, table: InProgress, kind: int, group: int) -> int:
    """The path of the request in progress that a request depends on, or -1 where it may choose.

    It also may where its type has no path of that name: it could not follow.
    """
    if routes.depends[kind] == _NONE or table.requests[group] == 0:
        return -1
    if routes.depends[kind] != _MESSAGE and not routes.writes[kind] and table.writers[group] == 0:
        return -1
    return path_like(routes, kind, table.label[group])


@inner
def enter_request(routes: Routes, table: InProgress, kind: int, group: int, path: int) -> None:
    """A request of the group is in progress on this path."""
    if routes.depends[kind] == _NONE:
        return
    if routes.writes[kind] or table.writers[group] == 0:
        table.label[group] = routes.label[path]
    table.requests[group] += 1
    table.writers[group] += 1 if routes.writes[kind] else 0


@inner
def leave_request(routes: Routes, table: InProgress, kind: int, group: int) -> None:
    """A request of the group has completed."""
    if routes.depends[kind] == _NONE:
        return
    table.requests[group] -= 1
    table.writers[group] -= 1 if routes.writes[kind] else 0
