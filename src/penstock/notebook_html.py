"""Small HTML tables, by which objects show themselves in notebooks (`_repr_html_`)."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def html_table(title: str, rows: Iterable[Sequence[Any]], heads: Sequence[str] = ()) -> str:
    """A table under a title; every value is escaped, and numbers stand to the right."""
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    top = f"<thead><tr>{head}</tr></thead>" if heads else ""
    return f"<div><strong>{escape(title)}</strong><table>{top}<tbody>{body}</tbody></table></div>"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"<td style='text-align:right'>{value:.4g}</td>"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"<td style='text-align:right'>{value:,}</td>"
    return f"<td style='text-align:left'>{'' if value is None else escape(str(value))}</td>"
