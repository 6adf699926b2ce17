"""What the bytes of a run's batches were for, from the figures of its coflows."""

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.coflow_context import BATCH, EXPLANATIONS, PREPARATION

_OF_BATCHES = {"rows": "features", "lists": "lists", "blocks": "batches"}
"""What batches are made of, and the labels of the channels that bring it."""


def batch_bytes(coflows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Bytes of requests and answers between tasks, by use.

    `rows` and `lists` are what batches read of features and neighbour lists, `blocks` batches that sampler tasks have
    drawn, `preparation` what samplers read before the first batch, `explanations` what explanations read and sent.
    """
    by_kind = {str(each["kind"]): each for each in coflows}
    flows = by_kind.get(BATCH, {}).get("flows", {})
    found = {use: int(flows.get(label, 0)) for use, label in _OF_BATCHES.items()}
    return found | {kind: int(by_kind.get(kind, {}).get("bytes", 0)) for kind in (PREPARATION, EXPLANATIONS)}
