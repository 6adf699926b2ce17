"""A simulation as a picture: `write_timeline` makes a page that works offline, or a trace that Perfetto opens.

`bars` lays tasks and flows out in lanes by machine and merges them where there are too many to draw, `drawing`
finds the critical path's shares and the use of links over time and has the bands with their style and script, and
`page` writes the page or the trace.
"""

from penstock.report.gantt.drawing import KindShare, pace_sentence, path_by_kind, path_sentence
from penstock.report.gantt.page import Shown, check_form, write_timeline

__all__ = ["KindShare", "Shown", "check_form", "pace_sentence", "path_by_kind", "path_sentence", "write_timeline"]
