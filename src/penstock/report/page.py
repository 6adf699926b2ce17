"""The page: its sections in order, in one file that loads nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.graph.atomic import write_whole
from penstock.report.cluster import cluster_cards
from penstock.report.curves import epoch_seconds_card, loss_card, memory_card
from penstock.report.facts import device_card, graph_card, machine_card, notes_card, settings_card
from penstock.report.headline import headline, run_title
from penstock.report.run_folder import RunRecord, read_run
from penstock.report.shell import page_text
from penstock.report.stages import stages_card, timeline_card
from penstock.report.validation import validation_card


def write_report(run: Path, defaults: Mapping[str, Any] | None = None) -> Path:
    """Write `report.html` into the run folder and return its path; `defaults` tell which settings were chosen."""
    page = render(read_run(run), defaults)
    target = Path(run) / "report.html"
    write_whole(target, page)
    return target


def render(run: RunRecord, defaults: Mapping[str, Any] | None = None) -> str:
    """The page as text."""
    cards = [
        loss_card(run),
        validation_card(run),
        stages_card(run),
        timeline_card(run),
        epoch_seconds_card(run),
        memory_card(run),
        notes_card(run),
        settings_card(run, defaults),
        graph_card(run),
        device_card(run),
        *cluster_cards(run),
        machine_card(run),
    ]
    return page_text(run_title(run), headline(run), cards, f"Run {run.name} · page written")
