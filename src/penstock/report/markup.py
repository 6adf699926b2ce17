"""The pieces of the page that every section uses."""

from html import escape

from penstock.report.run_folder import STAGES


def card(title: str, body: str, about: str = "", wide: bool = False, foot: str = "") -> str:
    """A titled card; `about` stands small beside the title and `foot` below the body; all but the title are HTML."""
    about = f'<span class="about">{about}</span>' if about else ""
    foot = f'<p class="foot">{foot}</p>' if foot else ""
    return f'<section class="card{" wide" if wide else ""}"><h2>{escape(title)}{about}</h2>{body}{foot}</section>'


def cut(text: str, longest: int) -> str:
    """At most `longest` characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def key(name: str, look: str) -> str:
    """A legend's entry: a patch of colour and a name."""
    return f'<span class="key {look}">{escape(name)}</span>'


def stage_look(stage: str) -> str:
    """The style sheet's class of a stage; names come from users, so unknown ones share one."""
    return stage if stage in STAGES else "other"
