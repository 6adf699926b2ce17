"""The pieces of the page that every section uses."""

from collections.abc import Iterable
from html import escape

from penstock.report.run_folder import STAGES


def card(title: str, body: str, about: str = "", wide: bool = False, foot: str = "") -> str:
    """A titled card; `about` stands small beside the title and `foot` below the body; all but the title are HTML."""
    about = f'<span class="about">{about}</span>' if about else ""
    foot = f'<p class="foot">{foot}</p>' if foot else ""
    return f'<section class="card{" wide" if wide else ""}"><h2>{escape(title)}{about}</h2>{body}{foot}</section>'


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values, as text."""
    items = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in rows)
    return f'<dl class="pairs">{items}</dl>'


def table(head: list[str], rows: list[list[str]], total: int = 0) -> str:
    """Rows of text, which may be the largest of `total`."""
    top = "".join(f"<th>{escape(each)}</th>" for each in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(each)}</td>' for each in row)}</tr>" for row in rows)
    if total > len(rows):
        body += f'<tr><td colspan="{len(head)}" class="none">and {total - len(rows):,} smaller ones</td></tr>'
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def cut(text: str, longest: int) -> str:
    """The text, shortened to at most `longest` characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def key(name: str, look: str) -> str:
    """A legend's entry: a patch of colour and a name."""
    return f'<span class="key {look}">{escape(name)}</span>'


def stage_look(stage: str) -> str:
    """The style sheet's class of a stage; names come from users, so unknown ones share one."""
    return stage if stage in STAGES else "other"
