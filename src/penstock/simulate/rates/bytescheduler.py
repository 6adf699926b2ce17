"""`bytescheduler`: what belongs to a layer nearer the front goes first, as the next step needs it sooner."""

import numpy as np

from penstock.simulate.rate_policy import Case, RatePolicy, terms_of
from penstock.simulate.sharing.families import PRIORITY
from penstock.simulate.state import Terms


def _terms(case: Case) -> Terms:
    return terms_of(case, rank=case.layers[None, :].astype(np.int64))


BYTESCHEDULER = RatePolicy("bytescheduler", PRIORITY, _terms)
