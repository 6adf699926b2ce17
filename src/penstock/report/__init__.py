"""Makes a run folder into a page: `report.html`, one file that works offline.

`run_folder` reads the folder and its logs, also where a run is unfinished or has died; `charts` draws; `words` puts
numbers and findings into sentences; `page` composes the page of the cards of `cards`, `cluster` and `explanations`,
with the elements of `markup` and the style and script of `assets`. `gantt/` draws simulated timelines, and
`explanations` also draws the explanation of a prediction. Nothing here writes anything but pages.
"""

from typing import TYPE_CHECKING

from penstock.registry import lazy_names

if TYPE_CHECKING:
    from penstock.report.explanations import write_explanation_page
    from penstock.report.page import render, write_report, write_report_or_note
    from penstock.report.run_folder import RunRecord, read_run

__all__ = ["RunRecord", "read_run", "render", "write_explanation_page", "write_report", "write_report_or_note"]

# Imported on first use, so that a command's help does not load the code of pages.
__getattr__, __dir__ = lazy_names(__name__)
