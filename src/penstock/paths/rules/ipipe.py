"""`ipipe`: a request type moves to another path when a request took longer than the base time, and back."""

from penstock.graph.inline_kernels import inner
from penstock.paths.route_table import Routes
from penstock.paths.rules.selector_state import SelectorState

_PLACE = 0
"""Column of `paths`, in the row of a type's first path: the type's place in the order of base times."""


@inner
def choose(routes: Routes, state: SelectorState, kind: int) -> int:
    """The path at the type's place in the order of base times."""
    return _path_at(routes, kind, int(state.paths[routes.type_first[kind], _PLACE]))


@inner
def observe(routes: Routes, state: SelectorState, kind: int, path: int, end_to_end: float) -> None:
    """Only requests of the present path count: a slow one moves the type on, and from the last place to the first.

    One that was not slow moves it back. So a type whose first path is quick stays there.
    """
    first, count = routes.type_first[kind], routes.type_first[kind + 1] - routes.type_first[kind]
    place = int(state.paths[first, _PLACE])
    if path != _path_at(routes, kind, place):
        return
    if end_to_end > routes.end_to_end[path]:
        state.paths[first, _PLACE] = (place + 1) % count
    else:
        state.paths[first, _PLACE] = max(place - 1, 0)


@inner
def _path_at(routes: Routes, kind: int, place: int) -> int:
    """The path of a type before which `place` others have a smaller base time."""
    first, end = routes.type_first[kind], routes.type_first[kind + 1]
    for path in range(first, end):
        before = 0
        for other in range(first, end):
            quicker = routes.end_to_end[other] < routes.end_to_end[path]
            if quicker or (routes.end_to_end[other] == routes.end_to_end[path] and other < path):
                before += 1
        if before == place:
            return int(path)
    return int(first)
