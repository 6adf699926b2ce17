"""`iteration-first`: flows of an earlier iteration go before those of a later one; max-min among equals.

Ours: batches that are needed sooner do not wait for prefetching.
"""

import numpy as np

from penstock.simulate.rate_policy import Case, RatePolicy, terms_of
from penstock.simulate.sharing.families import PRIORITY
from penstock.simulate.state import Terms


def _terms(case: Case) -> Terms:
    return terms_of(case, rank=np.arange(len(case.amounts.sizes), dtype=np.int64)[:, None].copy())


ITERATION_FIRST = RatePolicy("iteration-first", PRIORITY, _terms)
