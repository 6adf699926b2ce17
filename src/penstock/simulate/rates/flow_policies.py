"""Rate policies that look at single flows: equal shares, one flow after the other, by iteration or by slack."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.levels import durations_alone, tails
from penstock.simulate.rate_policy import Case, RatePolicy, by_rank, terms_of
from penstock.simulate.state import BY_ARRIVAL, BY_TIME_LEFT, PRIORITY, PROPORTIONAL

# `fair`: max-min fair rates by progressive filling. What `oes` leaves unused is given to flows that can use it. All
# flows count alike: the behaviour of a network that knows nothing of coflows (Megatron's case), and approximately that
# of long-lived TCP flows with equal round-trip times.

FAIR = RatePolicy("fair", PRIORITY, terms_of)


# `oes` (DGTP): every link is divided equally among its active flows, and a flow gets the least of its links' shares. On
# a star this is min(Bin / in-degree, Bout / out-degree), degrees counting active flows. DGTP works in time steps; rates
# change only when something starts or ends, so continuous time is exact. Its listing starts every task at once, its
# text only those that wait for nothing: we follow the text.

OES = RatePolicy("oes", PROPORTIONAL, terms_of)


# `fifo`: flows in the order in which they started, each takes all that is left along its path. DGTP says only that
# DistDGL sends from FIFO queues. One order for the whole network is ours; flows that start in the same instant are
# ordered by iteration, then by number.

FIFO = RatePolicy("fifo", BY_ARRIVAL, terms_of)


# `mrtf` (a baseline of DGTP): the flow with the least remaining time first; each takes all that is left along its path.
# Remaining time is bytes left over the path's rate when nothing else flows; DGTP does not define it. The order is
# updated whenever something starts or ends, and a flow in service may be preempted.

MRTF = RatePolicy("mrtf", BY_TIME_LEFT, terms_of)


# `iteration-first` (ours): flows of an earlier iteration go before those of a later one; max-min among equals. Batches
# that are needed sooner do not wait for prefetching.

ITERATION_FIRST = by_rank(
    "iteration-first", lambda case: np.arange(len(case.amounts.sizes), dtype=np.int64)[:, None].copy()
)


# `critical-path` (ours): the flow with the least slack first; max-min among those of similar slack. A flow's tail is
# the longest chain from its start to the end of the last iteration, each item as long as it takes alone. The longer the
# tail, the less slack, the earlier the rank; a rank is as wide as a sixteenth of the mean iteration on the longest
# chain. Measured on the papers100M setting: tails without contention beat DGTP's crowded ones by -0.2 to 7 %, and
# narrow ranks beat wide ones, most where samplers are away from their workers.

RANKS_PER_ITERATION = 16


def _slack_ranks(case: Case) -> Array:
    durations = durations_alone(case.routes, case.amounts, case.slowness)
    remaining = tails(case.shape, case.order, durations)
    longest, flows = remaining.max(), remaining[:, case.shape.tasks :]
    step = max(longest / (RANKS_PER_ITERATION * len(remaining)), np.finfo(np.float64).tiny)
    return np.asarray(np.floor((longest - flows) / step), np.int64)


CRITICAL_PATH = by_rank("critical-path", _slack_ranks)
