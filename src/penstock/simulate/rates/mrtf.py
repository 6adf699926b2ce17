"""`mrtf`: the flow with the least remaining time first; each takes all that is left along its path.

Remaining time is bytes left over the path's rate when nothing else flows; the source does not say. The order is looked
at whenever something starts or ends, and a flow in service may be put back.
"""

from penstock.simulate.rate_policy import RatePolicy, terms_of
from penstock.simulate.sharing.families import BY_TIME_LEFT

MRTF = RatePolicy("mrtf", BY_TIME_LEFT, terms_of)
