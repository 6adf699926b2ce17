"""The style sheet and the script of every page: their files lie beside this one, and the colours are here."""

from pathlib import Path


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
