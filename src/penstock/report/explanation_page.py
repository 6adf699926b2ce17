"""The page of one explanation: the prediction, the neighbourhood drawn, columns as bars, and both as tables."""

from html import escape
from pathlib import Path

from penstock.explain.explanation import ExplainedColumn, Explanation
from penstock.graph.atomic import write_whole
from penstock.quantities import counted
from penstock.report.explanation_picture import MOST_EDGES, picture
from penstock.report.markup import THEME_BUTTON, card, page_text, table, unbroken

_BARS, _ROWS = 20, 50
_ALIKE = 0.1
"""Masks that differ by less look the same as bars."""
_KEPT = 0.5
"""A column with a larger mask is nearer to being needed than not."""

_STYLE = """
.around { margin: 0 auto; width: 100%; max-width: 760px; }
.around svg { width: 100%; height: auto; overflow: visible; }
.around .edge { fill: none; stroke: var(--c1); stroke-linecap: round; }
.around circle { fill: var(--look); stroke: var(--card); stroke-width: 2; }
.around text { fill: var(--ink); font-size: 14px; paint-order: stroke; stroke: var(--card);
  stroke-width: 4px; stroke-linejoin: round; }
.around .centre text { font-size: 17px; font-weight: 650; }
@media (max-width: 560px) { .around text { font-size: 21px; } .around .centre text { font-size: 25px; } }
.columns { list-style: none; display: grid; grid-template-columns: auto minmax(60px, 1fr) auto; gap: 8px 14px;
  align-items: center; font-size: 14px; }
.columns li { display: contents; }
.columns span { max-width: 40vw; }
.columns small { margin-left: 8px; color: var(--soft); }
.columns .meter { --stage: var(--c2); margin: 0; }
.columns strong { font-weight: 600; text-align: right; }
.values { list-style: none; display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 4px 20px;
  margin-top: 12px; font-size: 14px; }
.values li { display: flex; justify-content: space-between; }
.values span { display: flex; flex: 1; justify-content: space-between; gap: 8px; }
.values small { color: var(--soft); }
"""


def write_explanation_page(explanation: Explanation, path: Path) -> None:
    """Write a page that works offline."""
    title = f"Vertex {explanation.vertex}"
    cards = [
        _picture_card(explanation),
        _columns_card(explanation),
        _edge_columns_card(explanation),
        _edges_card(explanation),
    ]
    write_whole(path, page_text(title, _header(title, explanation), cards, "Explanation written", style=_STYLE))


def prediction_words(explanation: Explanation) -> tuple[str, str, list[tuple[str, str]]]:
    """The prediction, the large figure beside it, and how it stands with the masks and without what they keep."""
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
    """What a reader must know before the masks: the vertex's own label, and whether the model doubts its answer."""
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
    figures = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in others)
    said = " ".join(judgement(explanation))
    look = " warn" if explanation.is_weak else ""
    banner = f'<p class="banner{look}">{unbroken(escape(said))}</p>' if said else ""
    number, _, unit = score.partition(" ")
    large = f"{escape(number)}<small>{escape(unit)}</small>" if unit else escape(score)
    named = "" if isinstance(explanation.prediction, float) else "<span>probability of the prediction</span>"
    return (
        f'<header class="good"><div class="top"><p class="state"><b>explanation</b></p>{THEME_BUTTON}</div>{banner}'
        f'<div class="hero"><div><h1>{escape(title)}</h1><p class="sub">{sub}</p></div>'
        f'<p class="figure"><b>{large}</b>{named}</p></div><dl class="figures">{figures}</dl></header>'
    )


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
        body = f'<ul class="columns">{"".join(_column_row(each, several) for each in shown)}</ul>'
    left = len(columns) - len(shown)
    more = f"Not shown: {counted(left, 'columns')} with smaller masks. " if left > 0 else ""
    about = f"{found}; beside each the vertex's own value"
    return card("Columns", body, about, foot=more + notes)


def _column_row(column: ExplainedColumn, several: bool) -> str:
    return _meter(_column_name(column, several), column.mask)


def _column_name(column: ExplainedColumn, several: bool) -> str:
    """A column's name and its value at the vertex, as HTML."""
    name = f"{column.node_type} {column.column}" if several else f"column {column.column}"
    value = "" if column.value is None else f" <small>{column.value:.3g}</small>"
    return f"<span>{escape(name)}{value}</span>"


def _meter(name: str, mask: float) -> str:
    """A line of a card: a name (HTML), and a mask as a bar and a number."""
    return f'<li>{name}<div class="meter"><i style="width:{mask * 100:.1f}%"></i></div><strong>{mask:.3f}</strong></li>'


def _edge_columns_card(explanation: Explanation) -> str:
    """Columns of what edges carry; no card where edges carry nothing."""
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
