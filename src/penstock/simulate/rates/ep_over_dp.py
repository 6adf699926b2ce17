"""`ep-over-dp` (Lina): in the backward pass experts' all-to-alls go before all else; the rest share as equals.

The source gives all-to-alls precedence over gradient reductions, and only where the two meet in the backward pass; of
what passes between stages it says nothing, so this shares with the reductions.
"""

from penstock.simulate.rate_policy import Case, RatePolicy, terms_of
from penstock.simulate.rates.kinds import rank_by_kind
from penstock.simulate.sharing.families import PRIORITY
from penstock.simulate.state import Terms


def _terms(case: Case) -> Terms:
    return terms_of(case, rank=rank_by_kind(case, {"ep-backward": 0}, 1))


EP_OVER_DP = RatePolicy("ep-over-dp", PRIORITY, _terms)
