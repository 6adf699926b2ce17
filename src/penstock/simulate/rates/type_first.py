"""`dp-first`, `pp-first` and `ep-first`: one type of coflow before all others, which share as equals."""

from penstock.simulate.rate_policy import Case, RatePolicy, terms_of
from penstock.simulate.rates.kinds import DP, EP, PP, rank_by_type
from penstock.simulate.sharing.families import PRIORITY
from penstock.simulate.state import Terms


def _first(chosen: str) -> RatePolicy:
    def terms(case: Case) -> Terms:
        return terms_of(case, rank=rank_by_type(case, {chosen: 0}, 1))

    return RatePolicy(f"{chosen}-first", PRIORITY, terms)


DP_FIRST, PP_FIRST, EP_FIRST = (_first(chosen) for chosen in (DP, PP, EP))
