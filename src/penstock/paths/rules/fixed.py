"""`static`, `node:NAME` and `random`: choices that no measurement changes."""

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.hashing import below, draw
from penstock.graph.inline_kernels import inner
from penstock.paths.route_table import Routes, RouteTable
from penstock.paths.rules.selector_state import SelectorState

_CREDIT = 0
"""Column of `paths`: how much of its share a path has not had yet."""


@inner
def choose_by_share(routes: Routes, state: SelectorState, kind: int) -> int:
    """The path that is furthest behind its share of the type's requests."""
    first, end = routes.type_first[kind], routes.type_first[kind + 1]
    best = first
    for path in range(first, end):
        state.paths[path, _CREDIT] += state.weights[path]
        if state.paths[path, _CREDIT] > state.paths[best, _CREDIT]:
            best = path
    state.paths[best, _CREDIT] -= 1.0
    return int(best)


@inner
def choose_at_random(routes: Routes, state: SelectorState, kind: int, request: int) -> int:
    """Any path of the type, by a hash of the request's number."""
    first, end = routes.type_first[kind], routes.type_first[kind + 1]
    return int(first + below(draw(state.key[0], np.uint64(request)), end - first))


def quickest_shares(table: RouteTable) -> Array:
    """All requests of a type on the path with the least base time."""
    shares = np.zeros(len(table.paths))
    for kind in range(len(table.types)):
        paths = table.paths_of(kind)
        shares[min(paths, key=lambda path: table.routes.base[path])] = 1.0
    return shares


def node_shares(table: RouteTable, node: str) -> Array:
    """All requests on the quickest path over a node; a type that has none takes its quickest path."""
    if not any(node in table.visited(path) for path in range(len(table.paths))):
        nodes = dict.fromkeys(name for path in range(len(table.paths)) for name in table.visited(path))
        raise PenstockError(f"No path goes over {node!r}{nearest(node, nodes)}", code="unknown-name")
    shares = np.zeros(len(table.paths))
    for kind in range(len(table.types)):
        paths = list(table.paths_of(kind))
        through = [path for path in paths if node in table.visited(path)] or paths
        shares[min(through, key=lambda path: table.routes.base[path])] = 1.0
    return shares
