"""The elements that every page uses, and the HTML file around them.

The file loads nothing and runs only Penstock's own script.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from itertools import groupby
from pathlib import Path

from penstock.pipeline.options import STAGES
from penstock.version import __version__

_NARROW, _WIDE = '<section class="card', '<section class="card wide'
_PHONE = 42
"""Characters that fit beside each other on a phone; the rows of a wider table become lists there."""
_UNITS = re.compile(r"(?<=\d) (?=(?:%|ms|s|µs|min|h|B|KiB|MiB|GiB)(?![\w/]))")
_JOINTS = re.compile(r"(?:(?<=[/_])|(?<=&gt;))(?=[^/_\s])")


def card(title: str, body: str, about: str = "", wide: bool = False, foot: str = "") -> str:
    """A titled card; `about` stands small beside the title and `foot` below the body; all but the title are HTML."""
    about = f'<span class="about">{about}</span>' if about else ""
    foot = f'<p class="foot">{unbroken(foot)}</p>' if foot else ""
    return f'{_WIDE if wide else _NARROW}"><h2>{escape(title)}{about}</h2>{body}{foot}</section>'


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values, given as text, as an HTML list."""
    items = "".join(f"<div><dt>{breakable(key)}</dt><dd>{breakable(value)}</dd></div>" for key, value in rows)
    return f'<dl class="pairs">{items}</dl>'


def table(head: list[str], rows: list[list[str]], total: int = 0) -> str:
    """An HTML table of text; `rows` may be the largest of `total`. On a phone, rows of a wide table become lists."""
    top = "".join(f"<th>{escape(each)}</th>" for each in head)
    body = "".join(f"<tr>{''.join(map(_cell, head, row))}</tr>" for row in rows)
    if (left := total - len(rows)) > 0:
        more = f"and {left:,} smaller {'one' if left == 1 else 'ones'}"
        body += f'<tr><td colspan="{len(head)}" class="none">{more}</td></tr>'
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    look = ' class="many"' if sum(widths) + 2 * len(widths) > _PHONE else ""
    return f'<div class="table"><table{look}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(name: str, value: str) -> str:
    return f'<td data-name="{escape(name)}">{breakable(value)}</td>'


def breakable(text: str) -> str:
    """The text as HTML that may break after slashes and underscores, and not within a word."""
    return unbroken(_JOINTS.sub("<wbr>", escape(text)))


def unbroken(text: str) -> str:
    """The HTML with each number and its unit kept on one line: `319 ms`, `86 %`."""
    return _UNITS.sub("\u00a0", text)


def cut(text: str, longest: int) -> str:
    """The text, shortened to at most `longest` characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def key(name: str, look: str) -> str:
    """A legend's entry as HTML: a patch of colour and a name."""
    return f'<span class="key {look}">{escape(name)}</span>'


def stage_look(stage: str) -> str:
    """The style sheet's class of a stage; names that it does not know share one class."""
    return stage if stage in STAGES else "other"


_THEME_BUTTON = (
    '<button id="theme" type="button" hidden title="Light or dark" aria-label="Light or dark">'
    '<svg viewBox="0 0 20 20" aria-hidden="true"><circle cx="10" cy="10" r="8"/><path d="M10 2a8 8 0 0 1 0 16z"/>'
    "</svg></button>"
)


def page_header(
    state: str,
    title: str,
    sub: str,
    *,
    look: str = "good",
    beside: str = "",
    banner: str = "",
    figure: str = "",
    below: str = "",
) -> str:
    """The top of a page: what it shows, with `beside` behind it, its title, its large figure and what is `below`.

    All but `state` and `title` are HTML.
    """
    return (
        f'<header class="{look}"><div class="top"><p class="state"><b>{escape(state)}</b>{beside}</p>{_THEME_BUTTON}'
        f'</div>{banner}<div class="hero"><div><h1>{escape(title)}</h1><p class="sub">{sub}</p></div>{figure}</div>'
        f"{below}</header>"
    )


def large_figure(value: str, name: str = "") -> str:
    """A number with its unit, and what it is, as HTML."""
    number, _, unit = value.partition(" ")
    unit = f"<small>{escape(unit)}</small>" if unit else ""
    named = f"<span>{escape(name)}</span>" if name else ""
    return f'<p class="figure"><b>{escape(number)}{unit}</b>{named}</p>'


def small_figures(figures: Iterable[tuple[str, str]]) -> str:
    """A row of names and values, given as text, as HTML."""
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in figures)
    return f'<dl class="figures">{items}</dl>' if items else ""


def page_text(
    title: str, header: str, cards: Sequence[str], foot: str, style: str = "", script: str = "", data: str = ""
) -> str:
    """A whole page; `header`, `cards` and `data` are HTML; `style` and `script` are added to the common ones.

    `foot` names what the page shows; the date and the release that wrote it follow.
    """
    scripts = SCRIPT + script
    written = f"{datetime.now():%d %B %Y, %H:%M}".lstrip("0")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f"<style>{STYLE}{style}</style></head>\n<body><main>\n{header}\n"
        f'<div class="cards">\n{chr(10).join(_laid_out([card for card in cards if card]))}\n</div>\n'
        f"<footer>{escape(foot)} {written} by Penstock {escape(__version__)}</footer></main>\n"
        f'<div id="tip" role="status" hidden></div>{data}<script>{scripts}</script></body></html>\n'
    )


def _laid_out(cards: Sequence[str]) -> list[str]:
    """Wide cards below each other; those between them in two columns of about the same height, unless one is alone."""
    found = []
    for wide, some in groupby(cards, key=lambda each: each.startswith(_WIDE)):
        group = list(some)
        if wide or len(group) == 1:
            found += group
        else:
            found.append(f'<div class="columns-of-cards">\n{chr(10).join(group)}\n</div>')
    return found


def _policy(scripts: str) -> str:
    """The content security policy: only these scripts run and nothing is fetched, whatever names contain."""
    digest = base64.b64encode(hashlib.sha256(scripts.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"


# The style sheet and the script of every page: their files lie beside this one, and the colours are here.


def read_asset(name: str) -> str:
    """A style sheet or script of the pages, as the text that follows others in one element."""
    return "\n" + (Path(__file__).parent / name).read_text(encoding="utf-8")


_DARK = """
  color-scheme: dark;
  --paper: #0d1315; --card: #141c1f; --ink: #e6eceb; --soft: #98a7aa; --line: #232e32; --track: #1d272b;
  --tip: #e6eceb; --tip-ink: #10181a;
  --good: #56c8a0; --warn: #e4b355; --bad: #f0837a; --going: #6fb1f0;
  --c1: #4cc0b0; --c2: #8b9cf5; --c3: #e0a458; --c4: #d783c0; --c5: #8fb98a;
  --seeds: #8a9ba1; --sample: #35b0a0; --gather: #dd9a3c; --transfer: #b884cf; --compute: #5f90e8; --other: #6d7d83;
  --forward: #5f90e8; --exchange: #dd9a3c; --backward: #35b0a0; --update: #b884cf;
"""

STYLE = f"""
:root {{
  color-scheme: light;
  --paper: #f4f6f5; --card: #ffffff; --ink: #182226; --soft: #5b696e; --line: #e2e8e7; --track: #edf1f0;
  --tip: #182226; --tip-ink: #f4f6f5;
  --good: #12805c; --warn: #94630a; --bad: #b5382e; --going: #2368ae;
  --c1: #0f7c72; --c2: #4557b8; --c3: #b0701a; --c4: #a4458a; --c5: #4d7d48;
  --seeds: #8d9ca1; --sample: #14968a; --gather: #d08a22; --transfer: #9a62b4; --compute: #3a6bcb; --other: #6d7d83;
  --forward: #3a6bcb; --exchange: #d08a22; --backward: #14968a; --update: #9a62b4;
}}
@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{{_DARK}}} }}
@media screen {{ :root[data-theme="dark"] {{{_DARK}}} }}
""" + read_asset("page.css")
"""One column on a phone, two on a screen, light or dark as the reader's system is."""
SCRIPT = read_asset("page.js")
"""What a pointer shows, and the choice of light or dark. Without it the page reads the same."""
