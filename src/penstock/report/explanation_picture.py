"""A neighbourhood as a picture: the explained vertex in the middle, those that it reads around it, hop by hop."""

import heapq
import math
from dataclasses import dataclass, field
from html import escape

from penstock.explain.explanation import ExplainedEdge, Explanation
from penstock.report.markup import cut, key

MOST_EDGES = 40
"""Edges that can still be told apart."""
_LOOKS = ("c1", "c3", "c2", "c4", "c5", "other")
_SIZE, _MARGIN = 640, 58

Vertex = tuple[str, int | str]
"""Node type and id."""


@dataclass
class _Place:
    """A drawn vertex: its ring, and the vertices that the picture reaches through it."""

    hop: int
    children: list[Vertex] = field(default_factory=list)
    angle: float = 0.0


def picture(explanation: Explanation) -> tuple[str, str]:
    """The drawing as SVG, and its legend. Edges that lead to the vertex are drawn, largest masks first."""
    chosen, places = _chosen_edges(explanation)
    centre: Vertex = (explanation.node_type, explanation.vertex)
    _spread(places, centre, 0.0, 2 * math.pi)
    rings = max(place.hop for place in places.values()) or 1
    where = {vertex: _point(place, rings) for vertex, place in places.items()}
    looks = dict(zip(dict.fromkeys(name for name, _ in places), _LOOKS * len(places), strict=False))
    lines = "".join(_line(edge, where) for edge in reversed(chosen))
    points = "".join(_vertex(vertex, where[vertex], looks[vertex[0]], vertex == centre) for vertex in places)
    what = f"The neighbourhood of vertex {explanation.vertex}: {len(chosen)} edges among {len(places)} vertices"
    svg = (
        f'<div class="lanes around"><svg viewBox="0 0 {_SIZE} {_SIZE}" role="img" aria-label="{escape(what, True)}">'
        f"{lines}{points}</svg></div>"
    )
    return svg, "".join(key(name, look) for name, look in looks.items()) if len(looks) > 1 else ""


def _chosen_edges(explanation: Explanation) -> tuple[list[ExplainedEdge], dict[Vertex, _Place]]:
    """The edges with the largest masks that connect to the vertex, and the vertices at their ends."""
    centre: Vertex = (explanation.node_type, explanation.vertex)
    into: dict[Vertex, list[ExplainedEdge]] = {}
    for edge in explanation.edges:
        into.setdefault((edge.destination_type, edge.destination), []).append(edge)
    reached, chosen = {centre}, list[ExplainedEdge]()
    waiting = [(-edge.mask, number, edge) for number, edge in enumerate(into.get(centre, []))]
    heapq.heapify(waiting)
    count = len(waiting)
    while waiting and len(chosen) < MOST_EDGES:
        edge = heapq.heappop(waiting)[2]
        chosen.append(edge)
        source = (edge.source_type, edge.source)
        if source in reached:
            continue
        reached.add(source)
        for further in into.get(source, []):
            heapq.heappush(waiting, (-further.mask, count, further))
            count += 1
    return chosen, _rings(centre, chosen)


def _rings(centre: Vertex, chosen: list[ExplainedEdge]) -> dict[Vertex, _Place]:
    """Every vertex on the ring of its fewest hops over the chosen edges, behind one that is a hop nearer."""
    places, ring = {centre: _Place(0)}, {centre}
    while ring:
        found = set[Vertex]()
        for edge in chosen:
            source, target = (edge.source_type, edge.source), (edge.destination_type, edge.destination)
            if target in ring and source not in places:
                places[source] = _Place(places[target].hop + 1)
                places[target].children.append(source)
                found.add(source)
        ring = found
    return places


def _spread(places: dict[Vertex, _Place], vertex: Vertex, start: float, width: float) -> None:
    """Give each vertex the middle of its sector, which is as wide as the leaves behind it are many."""
    place = places[vertex]
    place.angle = start + width / 2
    leaves = {child: _leaves(places, child) for child in place.children}
    for child, count in leaves.items():
        share = width * count / sum(leaves.values())
        _spread(places, child, start, share)
        start += share


def _leaves(places: dict[Vertex, _Place], vertex: Vertex) -> int:
    return max(1, sum(_leaves(places, child) for child in places[vertex].children))


def _point(place: _Place, rings: int) -> tuple[float, float]:
    middle = _SIZE / 2
    radius = (middle - _MARGIN) * place.hop / rings
    return middle + radius * math.cos(place.angle), middle + radius * math.sin(place.angle)


def _line(edge: ExplainedEdge, where: dict[Vertex, tuple[float, float]]) -> str:
    """A curve from source to destination that bends to one side, so that both directions of a pair are seen."""
    (x, y), (x_end, y_end) = (
        where[edge.source_type, edge.source],
        where[edge.destination_type, edge.destination],
    )
    if (x, y) == (x_end, y_end):
        path = f"M{x:.1f} {y:.1f}c-46 -46 46 -46 0 0"
    else:
        bend_x, bend_y = (x + x_end) / 2 - (y_end - y) * 0.08, (y + y_end) / 2 + (x_end - x) * 0.08
        path = f"M{x:.1f} {y:.1f}Q{bend_x:.1f} {bend_y:.1f} {x_end:.1f} {y_end:.1f}"
    tip = f"{edge.source} → {edge.destination}, {edge.relation}: {edge.mask:.3f}"
    return (
        f'<path class="edge" d="{path}" style="stroke-width:{0.7 + 6 * edge.mask:.2f};'
        f'opacity:{0.25 + 0.7 * edge.mask:.2f}" data-tip="{escape(tip, True)}"/>'
    )


def _vertex(vertex: Vertex, at: tuple[float, float], look: str, is_centre: bool) -> str:
    name = cut(str(vertex[1]), 12)
    x, y = at
    size = 17 if is_centre else 9
    tip = f"{vertex[0]} {vertex[1]}"
    return (
        f'<g class="{look}{" centre" if is_centre else ""}" data-tip="{escape(tip, True)}">'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>'
        f'<text x="{x:.1f}" y="{y + size + 13:.1f}">{escape(name)}</text></g>'
    )
