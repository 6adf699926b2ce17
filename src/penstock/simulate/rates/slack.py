"""`slack`: the coflow that can wait least goes first, by the step's own critical path.

Ours. A coflow's tail is the longest chain from its start to the end of the last step; the longer, the sooner its turn.
Tails depend on how long flows take, and that on the order: so the order is found in rounds, each from the times that
the best order so far gave in the simulator. The rounds start from the model's factors (`hermod`), from no order at all
(`fair`) and from times without contention, and the order with the shortest step wins: an order worse than one of these
is never taken. What comes out is an order of coflows, to be set before training starts, as the factors are.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.execution import Executor
from penstock.simulate.levels import durations_alone, tails
from penstock.simulate.rate_policy import Case, RatePolicy, terms_of
from penstock.simulate.rates.hermod import model_ranks
from penstock.simulate.sharing.families import PRIORITY
from penstock.simulate.state import Terms
from penstock.simulate.timeline import step_seconds

_ROUNDS = 4
_SAME = 1e-9  # relative: tails closer than this are one rank


def slack_orders(case: Case) -> list[Array]:
    """int64 [iterations, flows] each: the orders tried, the best first."""
    ranks = [
        model_ranks(case),
        np.zeros(case.amounts.sizes.shape, np.int64),
        _by_tails(case, durations_alone(case.routes, case.amounts, case.slowness)),
    ]
    tried = [_tried(case, each) for each in ranks]
    for _ in range(_ROUNDS):
        best = min(range(len(tried)), key=lambda k: tried[k][0])
        ranks.append(_by_tails(case, tried[best][1]))
        tried.append(_tried(case, ranks[-1]))
        if tried[-1][0] >= tried[best][0]:
            break
    return [ranks[k] for k in sorted(range(len(tried)), key=lambda k: tried[k][0])]


def _by_tails(case: Case, durations: Array) -> Array:
    """Ranks by the longest tail of a coflow's flows, longest first."""
    remaining = tails(case.shape, case.order, durations)[:, case.shape.tasks :]
    longest = np.zeros((len(remaining), int(case.coflows.max(initial=0)) + 1))
    for n in range(len(remaining)):
        np.maximum.at(longest[n], case.coflows, remaining[n])
    whole = float(longest.max(initial=0)) or 1.0
    place = np.round((whole - longest) / (whole * _SAME)).astype(np.int64)
    _, ranks = np.unique(place, return_inverse=True)
    return np.ascontiguousarray(ranks.reshape(place.shape)[:, case.coflows], np.int64)


def _tried(case: Case, ranks: Array) -> tuple[float, Array]:
    """Seconds of a step under an order, and what every item took."""
    record = Executor().run(PRIORITY, case, terms_of(case, rank=ranks), times=True).record
    return step_seconds(case, record.ends), record.ends - record.starts


def _terms(case: Case) -> Terms:
    return terms_of(case, rank=slack_orders(case)[0])


SLACK = RatePolicy("slack", PRIORITY, _terms, slack_orders)
