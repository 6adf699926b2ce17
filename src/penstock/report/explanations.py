"""Explanations as a page with a picture, and as the card of a run whose sampler used them."""

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import product
from pathlib import Path
from typing import NamedTuple

from penstock.explain.explainer import ExplainedColumn, ExplainedEdge, Explanation
from penstock.formatting import counted, percent
from penstock.graph.files import write_whole
from penstock.report.markup import (
    card,
    cut,
    key,
    large_figure,
    page_header,
    page_text,
    pairs,
    read_asset,
    small_figures,
    table,
    unbroken,
)
from penstock.report.run_folder import RunRecord, amount, mapping, whole
from penstock.report.words import byte_size, seconds

# A neighbourhood as a picture: the explained vertex in the middle, those that it reads around it, hop by hop.

MOST_EDGES = 40
"""The most edges that are drawn, so that they can be told apart."""
_LOOKS = ("c1", "c3", "c2", "c4", "c5", "other")
_SIZE, _MARGIN = 640, 58
_LONGEST_NAME = 12
_LETTER, _LINE, _CENTRE_SCALE = 13.0, 23.0, 1.2
"""Width of a letter and height of a line in the drawing's units, where they are largest relative to it: on a phone."""
_GAPS, _SIDES, _POINTS = (4, 11), 16, 48

Vertex = tuple[str, int | str]
"""Node type and id."""


@dataclass
class _Place:
    """A drawn vertex: its ring, and the vertices whose paths to the centre lead through it."""

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
    """Set each vertex's angle to the middle of its sector, whose width is proportional to the leaves behind it."""
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
    """A position for every vertex's name that no edge, vertex or other name crosses; names without one are absent.

    The centre and the vertices with the largest masks are placed first.
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
        # The centre's name is shown in any case.
        if not crossed[best] or vertex == centre:
            found[vertex] = around[best]
    return found


def _crossings(label: Label, taken: list[tuple[float, float, float]], others: Iterable[Label]) -> int:
    """How many points of edges and vertices lie in a label's box, plus the labels that it overlaps."""
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


# The page of one explanation: the prediction, the neighbourhood drawn, columns as bars, and both as tables.

_BARS, _ROWS = 20, 50
_ALIKE = 0.1
"""Masks that differ by less look the same as bars."""
_KEPT = 0.5
"""A column with a mask above this counts as kept."""


def write_explanation_page(explanation: Explanation, path: Path) -> None:
    """Write a page that works offline."""
    title = f"Vertex {explanation.vertex}"
    cards = [
        _picture_card(explanation),
        _columns_card(explanation),
        _edge_columns_card(explanation),
        _edges_card(explanation),
    ]
    style = read_asset("explanations.css")
    write_whole(path, page_text(title, _header(title, explanation), cards, "Explanation written", style))


def prediction_words(explanation: Explanation) -> tuple[str, str, list[tuple[str, str]]]:
    """The prediction, the large figure beside it, and the score with the masked input and with the rest."""
    numbers = isinstance(explanation.prediction, float)

    def shown(value: float) -> str:
        return f"{value:.4g}" if numbers else f"{value * 100:.1f} %"

    what = "a number" if numbers else _labelled(explanation.prediction)
    with_masks = [
        ("with the masked input alone", shown(explanation.masked_score)),
        ("with what the masks take away", shown(explanation.rest_score)),
    ]
    return what, shown(explanation.score), with_masks


def judgement(explanation: Explanation) -> list[str]:
    """Sentences that precede the masks: the vertex's own label, and whether the prediction is a weak one."""
    found = []
    if explanation.label is not None:
        right = {True: ": the prediction is right", False: ": the prediction is wrong", None: ""}[explanation.is_right]
        own = f"{explanation.label:.4g}" if isinstance(explanation.label, float) else _labelled(explanation.label)
        found.append(f"Its own label is {own}{right}.")
    if explanation.is_weak:
        chance = f"{100 / explanation.outputs:.2g} %"
        found.append(
            f"This is a weak prediction: of {explanation.outputs} classes, this one has"
            f" {explanation.score * 100:.1f} % of the probability, where guessing would give {chance}. The masks of a"
            " weak prediction say little."
        )
    return found


def _labelled(value: object) -> str:
    if isinstance(value, list):
        return f"labels {', '.join(map(str, value)) or 'none'}"
    return f"class {value}"


def _header(title: str, explanation: Explanation) -> str:
    what, score, others = prediction_words(explanation)
    below = [
        f"predicted: {what}",
        f"exact neighbourhood of {counted(explanation.vertices, 'vertices')}"
        f" and {counted(explanation.neighbourhood_edges, 'edges')}",
        f"masks of {counted(len(explanation.losses), 'steps')}",
    ]
    sub = " · ".join(f"<span>{escape(part)}</span>" for part in below)
    said = " ".join(judgement(explanation))
    look = " warn" if explanation.is_weak else ""
    banner = f'<p class="banner{look}">{unbroken(escape(said))}</p>' if said else ""
    named = "" if isinstance(explanation.prediction, float) else "probability of the prediction"
    figure = large_figure(score, named)
    return page_header("explanation", title, sub, banner=banner, figure=figure, below=small_figures(others))


def _picture_card(explanation: Explanation) -> str:
    drawing, legend = picture(explanation)
    left = len(explanation.edges) - MOST_EDGES
    more = f" Not drawn: {counted(left, 'edges')} with smaller masks." if left > 0 else ""
    foot = f"{legend}Messages go towards the vertex in the middle; an edge is as wide as its mask is large.{more}"
    return card("Neighbours", drawing, "edges by their masks", wide=True, foot=foot)


def _columns_card(explanation: Explanation) -> str:
    columns = [column for column in explanation.columns if column.mask > 0]
    notes = escape(" ".join(explanation.notes))
    if not columns:
        return card("Columns", '<p class="none">No column of features was masked.</p>', foot=notes)
    several = len({column.node_type for column in columns}) > 1
    shown = columns[:_BARS]
    kept = sum(column.mask >= _KEPT for column in columns)
    found = (
        f"{counted(len(columns), 'columns')}, of which {kept:,} {'is' if kept == 1 else 'are'} kept (masks from 0.5)"
    )
    if shown[0].mask - shown[-1].mask < _ALIKE and len(shown) > 1:
        # Bars of the same length compare nothing.
        alike = f"The {len(shown)} largest masks are alike, {shown[-1].mask:.3f} to {shown[0].mask:.3f}:"
        body = f'<p>{alike} no column matters more than the others.</p><ul class="values">'
        body += "".join(f"<li>{_column_name(each, several)}</li>" for each in shown) + "</ul>"
    else:
        body = f'<ul class="columns">{"".join(_meter(_column_name(each, several), each.mask) for each in shown)}</ul>'
    left = len(columns) - len(shown)
    more = f"Not shown: {counted(left, 'columns')} with smaller masks. " if left > 0 else ""
    about = f"{found}; beside each the vertex's own value"
    return card("Columns", body, about, foot=more + notes)


def _column_name(column: ExplainedColumn, several: bool) -> str:
    """A column's name and its value at the vertex, as HTML."""
    name = f"{column.node_type} {column.column}" if several else f"column {column.column}"
    value = "" if column.value is None else f" <small>{column.value:.3g}</small>"
    return f"<span>{escape(name)}{value}</span>"


def _meter(name: str, mask: float) -> str:
    """A line of a card: a name (HTML), and a mask as a bar and a number."""
    return f'<li>{name}<div class="meter"><i style="width:{mask * 100:.1f}%"></i></div><strong>{mask:.3f}</strong></li>'


def _edge_columns_card(explanation: Explanation) -> str:
    """The card of edge features' masks; empty where edges have no features."""
    columns = [column for column in explanation.edge_columns if column.mask > 0]
    if not columns:
        return ""
    several = len({column.relation for column in columns}) > 1
    rows = "".join(
        _meter(
            f"<span>{escape(f'{column.relation} ' * several + f'{column.field} {column.column}')}</span>", column.mask
        )
        for column in columns[:_BARS]
    )
    left = len(columns) - _BARS
    more = f"Not shown: {counted(left, 'columns')} with smaller masks." if left > 0 else ""
    return card("Columns of edges", f'<ul class="columns">{rows}</ul>', "what edges carry, by its masks", foot=more)


def _edges_card(explanation: Explanation) -> str:
    if not explanation.edges:
        return card("Edges", '<p class="none">The vertex has no neighbours.</p>')
    head = ["edge", "relation", "hop", "mask"]
    rows = [
        [f"{edge.source} → {edge.destination}", edge.relation, str(edge.hop), f"{edge.mask:.3f}"]
        for edge in explanation.edges[:_ROWS]
    ]
    return card("Edges", table(head, rows, len(explanation.edges)))


# The card of a run whose sampler used explanations of the model: what they selected, saved and cost.

_MOST_TYPES = 12


def explanations_card(run: RunRecord) -> str:
    """The card of the first worker's explanations; empty for other runs."""
    found = mapping(run.result.get("explanations"))
    made = whole(found.get("made"))
    if made is None:
        return ""
    rows = [("explanations", f"{made:,}"), *_chosen(found), *_saved(found), *_cost(found)]
    return card("Explanations", pairs(rows), "of the first worker")


def _chosen(found: dict[str, object]) -> list[tuple[str, str]]:
    """How scores are distributed, and which share of columns and vertices is remote."""
    rows = []
    explained, halo = whole(found.get("explained_rows")) or 0, whole(found.get("halo_rows")) or 0
    rows.append(("remote rows in the newest", f"{explained:,} of {counted(halo, 'remote neighbours')}"))
    histogram = found.get("scores_histogram")
    if isinstance(histogram, list) and explained:
        counts = [whole(each) or 0 for each in histogram]
        shown = [
            f"{number_of / 10:.1f} to {(number_of + 1) / 10:.1f}: {count:,}"
            for number_of, count in enumerate(counts[:10])
            if count
        ]
        rows.append(("scores", ", ".join(shown)))
    sent, every = mapping(found.get("columns_sent")), mapping(found.get("columns_in_all"))
    rows += [
        (f"columns of {name} sent", f"{whole(sent[name]) or 0:,} of {whole(every.get(name)) or 0:,}")
        for name in list(sent)[:_MOST_TYPES]
    ]
    vertices = mapping(found.get("vertices"))
    remote, count = amount(vertices.get("remote")), amount(vertices.get("all"))
    if count:
        rows.append(("remote vertices in batches", f"{remote:,.0f} of {count:,.0f} ({percent(remote / count)})"))
    return rows


def _saved(found: dict[str, object]) -> list[tuple[str, str]]:
    rows = mapping(found.get("rows"))
    size, stored = amount(rows.get("bytes")), amount(rows.get("bytes_as_stored"))
    if not stored:
        return []
    return [
        ("bytes of rows saved", f"{byte_size(stored - size)} of {byte_size(stored)} ({percent(1 - size / stored)})")
    ]


def _cost(found: dict[str, object]) -> list[tuple[str, str]]:
    took, cores = amount(found.get("seconds")), amount(found.get("cores"))
    pulled, sent = amount(found.get("bytes_pulled")), amount(found.get("score_bytes_sent"))
    return [
        ("seconds of explaining", f"{seconds(took)} on {cores:.2f} cores"),
        ("batches waited for them", seconds(amount(found.get("waited_s")))),
        ("read for explanations", byte_size(pulled)),
        ("scores sent to owners", byte_size(sent)),
    ]
