"""The card of a run that trained on the whole graph: how its steps were divided, and how workers exchanged rows."""

from html import escape

from penstock.quantities import counted
from penstock.report.markup import card, pairs
from penstock.report.run_folder import RunRecord
from penstock.report.values import number, whole
from penstock.report.words import seconds

_SCOPES = {"reached": "vertices that the loss reaches", "all": "all vertices"}
_KEPT = {"recompute": "not kept, computed again"}


def whole_graph_card(run: RunRecord) -> str:
    """Bins by layer, what is kept for the backward pass, which edges were supervised, and how rows travelled."""
    result, rows = run.result, list[tuple[str, str]]()
    bins = result.get("bins")
    if isinstance(bins, list) and bins:
        rows.append(("bins by layer", ", ".join(str(whole(each) or 0) for each in bins)))
    if (scope := result.get("scope")) is not None:
        rows.append(("scope", _SCOPES.get(str(scope), str(scope))))
    if (keep := result.get("keep")) is not None:
        rows.append(
            ("layers' outputs", _KEPT.get(str(keep), f"kept in {keep} memory" if keep != "disk" else "on disk"))
        )
    if isinstance(again := result.get("recomputed"), bool):
        rows.append(("bins computed again", "yes, in the backward pass" if again else "no"))
    supervised, messages = whole(result.get("supervised_edges")), whole(result.get("message_edges"))
    if supervised is not None and messages is not None:
        rows += [("edges predicted", f"{supervised:,}"), ("edges that carry messages", f"{messages:,}")]
    rows += _exchanged(run)
    about = f"{counted(_steps(run), 'steps')} an epoch" if rows and _steps(run) > 1 else ""
    return card("Whole graph", pairs(rows), escape(about)) if rows else ""


def _exchanged(run: RunRecord) -> list[tuple[str, str]]:
    result, rows = run.result, list[tuple[str, str]]()
    if (how := result.get("exchange")) is not None:
        rows.append(("exchange", str(how)))
    if (exposed := number(result.get("exposed_communication_s"))) is not None:
        most = number(result.get("largest_exposed_communication_s"))
        own, longest = seconds(exposed), seconds(max(most or 0.0, exposed))
        if most is None:
            said = own
        elif own == longest:
            said = f"{own} on the first worker, and on no other more"
        else:
            said = f"{own} on the first worker, {longest} on the one that waited most"
        rows.append(("communication not hidden", said))
    return rows


def _steps(run: RunRecord) -> int:
    return whole(run.job.get("steps_per_epoch")) or 1
