"""Values as people read and write them: counts, sizes, percentages, and small tables in notebooks."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from penstock.errors import PenstockError

# Counts, sizes and differences as people write them: `1 epoch`, `20 epochs`, `80GB`, `+3 %`.

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}

_SINGULARS = {
    "vertices": "vertex",
    "batches": "batch",
    "classes": "class",
    "matches": "match",
    "losses": "loss",
    "processes": "process",
}


def counted(count: int, plural: str) -> str:
    """A count with its noun, given in the plural: `counted(1, "epochs")` is `1 epoch`."""
    return f"{count:,} {singular(plural) if count == 1 else plural}"


def singular(plural: str) -> str:
    """The singular of a plural; of several words, that of the last one."""
    head, space, last = plural.rpartition(" ")
    usual = f"{last.removesuffix('ies')}y" if last.endswith("ies") else last.removesuffix("s")
    return f"{head}{space}{_SINGULARS.get(last, usual)}"


def percent(share: float) -> str:
    """A share of one as a percentage without decimals; what rounds to nothing has no sign: `62 %`, `0 %`."""
    return f"{round(share * 100) + 0:.0f} %"


def signed_percent(share: float, digits: int = 0) -> str:
    """A difference as a percentage with its sign; one that rounds to nothing has none: `+3 %`, `-12 %`, `0 %`."""
    text = f"{share * 100:+.{digits}f}"
    return f"{text} %" if any(digit in "123456789" for digit in text) else "0 %"


def parsed_bytes(text: str, what: str) -> int:
    """Bytes as people write them: `80GB`, `24 GiB`, `512MB`; `what` names the option in a refusal."""
    found = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?i?)b?\s*", text.lower())
    try:
        size = float(found[1]) * _UNITS[found[2]] if found is not None else 0.0
    except (ValueError, KeyError):
        size = 0.0
    if size < 1:
        raise PenstockError(f"{what} is {text!r}: give a size such as 80GB or 24GiB.", code="invalid-value")
    return int(size)


# Small HTML tables, by which objects show themselves in notebooks (`_repr_html_`).


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
