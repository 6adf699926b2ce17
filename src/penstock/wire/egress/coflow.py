"""Coflows in strict order: first what workers wait for with nothing else to do, then batches in their order.

Gradients, weights, embeddings and the controller's words (priority 0 and below) pass before lists and features, which
are asked for ahead. Of those, all that an earlier batch needs goes before anything of a later one; of one batch, draws
before rows, since rows are known when the draws are there. Flows of one rank share by bytes: workers train in step, so
that the batch of one is needed when the others' are.

Nothing is starved for long: whatever is ahead belongs to a step that ends, and the next step needs what waited.
"""

from penstock.wire.egress.policy import Head, Policy

URGENT = 0
"""The last priority of what is not made ahead."""


def _rank(head: Head) -> tuple[int, ...]:
    ahead = int(head.priority > URGENT)
    return ahead, head.turn, head.priority, head.start, head.arrival


POLICY = Policy(_rank, lambda priority: priority, within=True)
