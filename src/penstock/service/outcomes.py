"""What becomes of a job when its process has ended: the decision, apart from carrying it out."""

from collections.abc import Mapping
from typing import Any

from penstock.quantities import counted
from penstock.service.records import JobRecord

MOST_LOST = 5
"""How often in a row a job's process may be killed without having written a checkpoint."""


def after_end(
    record: JobRecord,
    outcome: Mapping[str, Any] | None,
    *,
    step: int,
    too_much: str | None = None,
    stopping: bool = False,
    beside: bool = False,
    with_others: bool = False,
) -> dict[str, Any]:
    """The changes to a job whose process has ended.

    `outcome` is what the process reported, None where it was killed. `step` is that of its newest checkpoint,
    `too_much` the sentence of the service that ended it for its memory, `stopping` whether the service ends
    itself, `beside` whether others ran on its device, and `with_others` whether its process ended by itself while
    others trained in it.
    """
    if record.cancelling:
        return {"state": "cancelled", "reason": f"It was cancelled; what it had trained is in {record.run}."}
    if outcome is not None and outcome["state"] == "done":
        return {"state": "ended", "reason": str(outcome.get("reason", "")), "code": None}
    if too_much is not None:
        return _after_too_much(record, too_much)
    if outcome is not None and outcome["state"] == "failed":
        return _after_failure(record, outcome, beside)
    if stopping or (outcome is not None and outcome["state"] == "interrupted"):
        return {
            "state": "interrupted",
            "reason": "It was stopped and goes on from its newest checkpoint.",
            "step": step,
        }
    lost = 1 if step > record.step else record.lost + 1
    if lost > MOST_LOST:
        return {
            "state": "failed",
            "code": "peer-lost",
            "reason": f"Its process was killed {counted(lost, 'times')} in a row before it had written a checkpoint:"
            " see its log, and set checkpoint_minutes lower.",
        }
    if with_others:
        why = (
            "The process that it shared with other jobs was killed or crashed, which may be their doing: it goes on"
            " from its newest checkpoint, alone."
        )
        return {"state": "interrupted", "reason": why, "lost": lost, "step": step, "alone": 1}
    why = "Its process was killed or crashed; it goes on from its newest checkpoint."
    return {"state": "interrupted", "reason": why, "lost": lost, "step": step}


def _after_failure(record: JobRecord, outcome: Mapping[str, Any], beside: bool) -> dict[str, Any]:
    reason, code = str(outcome["reason"]), str(outcome["code"])
    if code == "out-of-memory":
        return _after_too_much(record, reason)
    if code == "in-use":
        # The process of an earlier try is not quite gone.
        return (
            {"state": "interrupted", "reason": reason, "lost": record.lost + 1}
            if record.lost < MOST_LOST
            else {
                "state": "failed",
                "code": code,
                "reason": reason,
            }
        )
    if outcome.get("fault") and beside and not record.alone:
        why = (
            f"The device failed while other jobs ran on it, which may be their doing: it is tried again alone. {reason}"
        )
        return {"state": "interrupted", "reason": why, "alone": 1}
    return {"state": "failed", "reason": reason, "code": code}


def _after_too_much(record: JobRecord, sentence: str) -> dict[str, Any]:
    """A job whose forecast was too low is tried once more with the whole device; if that is not enough, it fails."""
    if record.alone:
        return {"state": "failed", "code": "out-of-memory", "reason": f"{sentence} It had the whole device."}
    needs = {
        "device_bytes": max(record.device_bytes or 0, record.peak_device_bytes or 0),
        "host_bytes": max(record.host_bytes or 0, record.peak_host_bytes or 0),
    }
    return {"state": "interrupted", "reason": f"{sentence} It is tried once more, alone.", "alone": 1, **needs}
