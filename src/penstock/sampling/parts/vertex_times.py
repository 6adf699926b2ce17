"""Draws by the times of vertices, which a list's owner does not have of other parts' vertices.

Whole lists come to whoever asks, who has all vertices' times and draws from them as an owner would.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet
from penstock.sampling.lists import DrawnNeighbours, Lists, ListSource, Readers
from penstock.sampling.neighbours import ALL
from penstock.sampling.temporal import Clock

_ANY = np.uint64(0)
"""Whole lists are not drawn: any key names them."""
_WEIGHT = "weight"


def check_readers(readers: Readers) -> None:
    """Refuse options that sampling by time over parts does not support."""
    if len(readers.limits) and readers.exclusion:
        raise PenstockError(
            "A cut graph cannot be sampled by time with edges excluded: leave out `time` or `exclude`.",
            code="unsupported-combination",
        )


class VertexTimedLists:
    """Lists of one relation whose readers have limits; `lists` give them whole, wherever they are."""

    def __init__(
        self, lists: ListSource, names: Array, times: Array, replace: bool = False, uniform: bool = False
    ) -> None:
        """`names` are the destinations' original numbers and `times` those of the sources, by new number.

        Lists that are weighted come with the weights of all their edges: draws go by the places in whole lists.
        """
        self._lists, self._names, self._replace, self.weighted = lists, names, replace, lists.weighted
        self._uniform = uniform
        self._clock = Clock(np.empty(0, times.dtype), times)

    def start_draw(self, readers: Readers, key: np.uint64, fanout: int, edges: bool) -> Callable[[], DrawnNeighbours]:
        """Ask for whole lists; they are drawn from when the answer is waited for."""
        ready = self._start(readers, edges)

        def drawn() -> DrawnNeighbours:
            lists, here, numbers = ready()
            found = lists.draw(here, key, fanout, edges)
            return found if numbers is None else found._replace(positions=numbers[found.positions])

        return drawn

    def start_totals(self, readers: Readers) -> Callable[[], Array]:
        """Ask for whole lists; what is in time is counted when the answer is waited for."""
        ready = self._start(readers, False)

        def totals() -> Array:
            lists, here, _ = ready()
            return lists.totals(here)

        return totals

    def _start(self, readers: Readers, edges: bool) -> Callable[[], tuple[Lists, Readers, Array | None]]:
        """Each list is asked for once, in however many trees its vertex is."""
        check_readers(readers)
        vertices, places = np.unique(readers.vertices, return_inverse=True)
        asked = self._lists.start_draw(Readers(vertices), _ANY, ALL, edges)
        return partial(self._here, asked, vertices, readers._replace(vertices=places))

    def _here(
        self, asked: Callable[[], DrawnNeighbours], vertices: Array, readers: Readers
    ) -> tuple[Lists, Readers, Array | None]:
        """The lists that came, who reads them, and the numbers of their edges where these were asked for."""
        found = asked()
        fields = {} if found.weights is None else {_WEIGHT: found.weights}
        whole, weight = EdgeSet(found.indptr, found.sources, fields), _WEIGHT if self.weighted else None
        lists = Lists(whole, "A cut graph", self._names[vertices], self._replace, weight, self._clock, self._uniform)
        return lists, readers, found.positions
