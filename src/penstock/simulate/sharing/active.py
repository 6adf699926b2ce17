"""The paths with flows on every link, kept first in the link's list, so that sharing a link looks at no idle path."""

from penstock.graph.arrays import Array
from penstock.simulate.inner import inner


@inner
def activate(links: Array, paths: Array, path_links: Array, link_crossings: Array, places: Array, path: int) -> None:
    """Add a path to the active ones of the links it crosses."""
    for at in range(paths[path].first, paths[path].last):
        link = path_links[at]
        _swap(link_crossings, places, at, links[link].first + links[link].active)
        links[link].active += 1


@inner
def deactivate(links: Array, paths: Array, path_links: Array, link_crossings: Array, places: Array, path: int) -> None:
    """Take a path out of the active ones of the links it crosses."""
    for at in range(paths[path].first, paths[path].last):
        link = path_links[at]
        links[link].active -= 1
        _swap(link_crossings, places, at, links[link].first + links[link].active)


@inner
def _swap(link_crossings: Array, places: Array, at: int, place: int) -> None:
    """Put a crossing at a place of its link's list, and what stood there where it stood."""
    other, left = link_crossings[place], places[at]
    link_crossings[place], places[at] = at, place
    link_crossings[left], places[other] = other, left
