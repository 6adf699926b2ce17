"""The fields of a job that carry out a choice."""

from typing import Any

from penstock.plan.execution import ExecutionChoice


def fields_of(choice: ExecutionChoice) -> dict[str, Any]:
    """The fields that differ from those of another choice; on a CPU those of a device are left out."""
    found: dict[str, Any] = {
        "device": choice.device,
        "first_layer": choice.first_layer,
        "order": list(choice.order),
        "groups": choice.groups,
        "sample_threads": choice.sample_threads,
    }
    if choice.device == "cpu":
        return found
    placement: dict[str, Any] = {"features": choice.features}
    if choice.features == "pinned":
        placement["cache_rows"] = choice.cache_rows
    return {**found, "sample_on": "device" if choice.sampled_by == "cuda" else "host", "placement": placement}
