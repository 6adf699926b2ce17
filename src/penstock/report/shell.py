"""What every page is wrapped in: one file that loads nothing and runs no script but our own."""

import base64
import hashlib
from collections.abc import Sequence
from datetime import datetime
from html import escape

from penstock.report.script import SCRIPT
from penstock.report.style import STYLE
from penstock.version import __version__

THEME_BUTTON = (
    '<button id="theme" type="button" hidden title="Light or dark" aria-label="Light or dark">'
    '<svg viewBox="0 0 20 20" aria-hidden="true"><circle cx="10" cy="10" r="8"/><path d="M10 2a8 8 0 0 1 0 16z"/>'
    "</svg></button>"
)


def page_text(
    title: str, header: str, cards: Sequence[str], foot: str, style: str = "", script: str = "", data: str = ""
) -> str:
    """A whole page; `header`, `cards` and `data` are HTML, `style` and `script` are added to those of all pages.

    `foot` says what the page is of, before when and by which release it was written.
    """
    scripts = SCRIPT + script
    written = f"{datetime.now():%d %B %Y, %H:%M}".lstrip("0")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f"<style>{STYLE}{style}</style></head>\n<body><main>\n{header}\n"
        f'<div class="cards">\n{chr(10).join(card for card in cards if card)}\n</div>\n'
        f"<footer>{escape(foot)} {written} by Penstock {escape(__version__)}</footer></main>\n"
        f'<div id="tip" role="status" hidden></div>{data}<script>{scripts}</script></body></html>\n'
    )


def _policy(scripts: str) -> str:
    """Only our own script runs and nothing is fetched, whatever names contain."""
    digest = base64.b64encode(hashlib.sha256(scripts.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
