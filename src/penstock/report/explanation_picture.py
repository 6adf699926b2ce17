"""A neighbourhood as a picture: the explained vertex in the middle, those that it reads around it, hop by hop."""

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import product
from typing import NamedTuple

from penstock.explain.explanation import ExplainedEdge, Explanation
from penstock.report.markup import cut, key

MOST_EDGES = 40
"""Edges that can still be told apart."""
_LOOKS = ("c1", "c3", "c2", "c4", "c5", "other")
_SIZE, _MARGIN = 640, 58
_LONGEST_NAME = 12
_LETTER, _LINE, _CENTRE_SCALE = 13.0, 23.0, 1.2
"""Width of a letter and height of a line where they are largest beside the drawing: on a phone."""
_GAPS, _SIDES, _POINTS = (4, 11), 16, 48

Vertex = tuple[str, int | str]
"""Node type and id."""


@dataclass
class _Place:
    """A drawn vertex: its ring, and the vertices that the picture reaches through it."""

    hop: int
    children: list[Vertex] = field(default_factory=list)
    angle: float = 0.0


class Label(NamedTuple):
    """Where a vertex's name stands: its anchor, which side of the text that is, and the box that it may fill."""

    x: float
    y: float
    anchor: str
    baseline: str
    box: tuple[float, float, float, float]
    """Left, top, right, bottom."""


def picture(explanation: Explanation) -> tuple[str, str]:
    """The drawing as SVG, and its legend. Edges that lead to the vertex are drawn, largest masks first."""
    chosen, places = _chosen_edges(explanation)
    centre: Vertex = (explanation.node_type, explanation.vertex)
    _spread(places, centre, 0.0, 2 * math.pi)
    rings = max(place.hop for place in places.values()) or 1
    where = {vertex: _point(place, rings) for vertex, place in places.items()}
    looks = dict(zip(dict.fromkeys(name for name, _ in places), _LOOKS * len(places), strict=False))
    lines = "".join(_line(edge, where) for edge in reversed(chosen))
    labels = place_labels(chosen, where, centre)
    points = "".join(
        _vertex(vertex, where[vertex], looks[vertex[0]], vertex == centre, labels.get(vertex)) for vertex in places
    )
    what = f"The neighbourhood of vertex {explanation.vertex}: {len(chosen)} edges among {len(places)} vertices"
    svg = (
        f'<div class="lanes around"><svg viewBox="0 0 {_SIZE} {_SIZE}" role="img" aria-label="{escape(what, True)}">'
        f"{lines}{points}</svg></div>"
    )
    keys = "".join(key(name, look) for name, look in looks.items()) if len(looks) > 1 else ""
    left = len(places) - len(labels)
    return svg, keys + (f"Point at a vertex for its name: {left:,} have no room for theirs. " if left else "")


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


def place_labels(
    chosen: list[ExplainedEdge], where: dict[Vertex, tuple[float, float]], centre: Vertex
) -> dict[Vertex, Label]:
    """A place for every vertex's name beside it that no edge, vertex or other name crosses; names without one lack.

    Names of the centre and of vertices with the largest masks choose first.
    """
    ends = ((edge.source_type, edge.source) for edge in chosen)
    order = dict.fromkeys([centre, *(vertex for vertex in ends if vertex in where), *where])
    # Points along the edges, with half the width of the line that is drawn there.
    taken = [(x, y, _half_width(edge)) for edge in chosen for x, y in edge_points(edge, where)]
    taken += [(x, y, float(_radius(vertex, centre))) for vertex, (x, y) in where.items()]
    found: dict[Vertex, Label] = {}
    for vertex in order:
        around = list(_candidates(vertex, where[vertex], centre))
        if not around:
            continue
        crossed = [_crossings(label, taken, found.values()) for label in around]
        best = min(range(len(around)), key=lambda place: crossed[place])
        # Whose neighbourhood it is must be seen in any case.
        if not crossed[best] or vertex == centre:
            found[vertex] = around[best]
    return found


def _crossings(label: Label, taken: list[tuple[float, float, float]], others: Iterable[Label]) -> int:
    """Points of edges and vertices in a label's box, and labels that it meets."""
    points = sum(_in_box(label.box, *point) for point in taken)
    return points + sum(_boxes_meet(label.box, other.box) for other in others)


def _candidates(vertex: Vertex, at: tuple[float, float], centre: Vertex) -> Iterator[Label]:
    """Places around a vertex: away from the middle first, where no edges of the tree come from."""
    x, y = at
    letter = _LETTER * (_CENTRE_SCALE if vertex == centre else 1.0)
    wide, tall = letter * len(cut(str(vertex[1]), _LONGEST_NAME)), _LINE * (_CENTRE_SCALE if vertex == centre else 1.0)
    out = math.atan2(y - _SIZE / 2, x - _SIZE / 2)
    sides = sorted(range(_SIDES), key=lambda side: math.cos(2 * math.pi * side / _SIDES - out), reverse=True)
    for gap, side in product(_GAPS, sides):
        off = _radius(vertex, centre) + gap
        right, down = math.cos(2 * math.pi * side / _SIDES), math.sin(2 * math.pi * side / _SIDES)
        anchor = "start" if right > 0.3 else "end" if right < -0.3 else "middle"
        baseline = "hanging" if down > 0.3 else "auto" if down < -0.3 else "central"
        left = x + off * right - wide * {"start": 0.0, "end": 1.0, "middle": 0.5}[anchor]
        top = y + off * down - tall * {"hanging": 0.0, "auto": 1.0, "central": 0.5}[baseline]
        if (left > -_MARGIN and left + wide < _SIZE + _MARGIN) or vertex == centre:
            yield Label(x + off * right, y + off * down, anchor, baseline, (left, top, left + wide, top + tall))


def _in_box(box: tuple[float, float, float, float], x: float, y: float, around: float) -> bool:
    left, top, right, bottom = box
    return left - around < x < right + around and top - around < y < bottom + around


def _boxes_meet(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _half_width(edge: ExplainedEdge) -> float:
    return (0.7 + 6 * edge.mask) / 2


def _radius(vertex: Vertex, centre: Vertex) -> int:
    return 17 if vertex == centre else 9


def edge_points(edge: ExplainedEdge, where: dict[Vertex, tuple[float, float]]) -> list[tuple[float, float]]:
    """Points on an edge's curve, close to each other."""
    (x, y), bend, (x_end, y_end) = _curve(edge, where)
    if bend is None:
        return [(x - 20, y - 25), (x, y - 34), (x + 20, y - 25)]
    shares = [number / _POINTS for number in range(_POINTS + 1)]
    return [
        (
            (1 - t) ** 2 * x + 2 * t * (1 - t) * bend[0] + t**2 * x_end,
            (1 - t) ** 2 * y + 2 * t * (1 - t) * bend[1] + t**2 * y_end,
        )
        for t in shares
    ]


def _curve(
    edge: ExplainedEdge, where: dict[Vertex, tuple[float, float]]
) -> tuple[tuple[float, float], tuple[float, float] | None, tuple[float, float]]:
    """Start, bend and end of an edge: it bends to one side, so that both directions of a pair are seen."""
    (x, y), (x_end, y_end) = (
        where[edge.source_type, edge.source],
        where[edge.destination_type, edge.destination],
    )
    if (x, y) == (x_end, y_end):
        return (x, y), None, (x, y)
    bend = (x + x_end) / 2 - (y_end - y) * 0.08, (y + y_end) / 2 + (x_end - x) * 0.08
    return (x, y), bend, (x_end, y_end)


def _line(edge: ExplainedEdge, where: dict[Vertex, tuple[float, float]]) -> str:
    """A curve from source to destination, as wide as its mask is large."""
    (x, y), bend, (x_end, y_end) = _curve(edge, where)
    if bend is None:
        path = f"M{x:.1f} {y:.1f}c-46 -46 46 -46 0 0"
    else:
        path = f"M{x:.1f} {y:.1f}Q{bend[0]:.1f} {bend[1]:.1f} {x_end:.1f} {y_end:.1f}"
    tip = f"{edge.source} → {edge.destination}, {edge.relation}: {edge.mask:.3f}"
    return (
        f'<path class="edge" d="{path}" style="stroke-width:{2 * _half_width(edge):.2f};'
        f'opacity:{0.25 + 0.7 * edge.mask:.2f}" data-tip="{escape(tip, True)}"/>'
    )


def _vertex(vertex: Vertex, at: tuple[float, float], look: str, is_centre: bool, label: Label | None) -> str:
    name = cut(str(vertex[1]), _LONGEST_NAME)
    x, y = at
    size = _radius(vertex, vertex if is_centre else ("", ""))
    text = (
        ""
        if label is None
        else (
            f'<text x="{label.x:.1f}" y="{label.y:.1f}" text-anchor="{label.anchor}"'
            f' dominant-baseline="{label.baseline}">{escape(name)}</text>'
        )
    )
    tip = f"{vertex[0]} {vertex[1]}"
    return (
        f'<g class="{look}{" centre" if is_centre else ""}" data-tip="{escape(tip, True)}">'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>{text}</g>'
    )
