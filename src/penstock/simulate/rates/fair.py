"""`fair`: max-min fair rates by progressive filling. What `oes` leaves unused is given to whoever can take it.

All flows count alike: what a network does that knows nothing of coflows (Megatron's case), and what long-lived TCP
flows of one round-trip time come near to.
"""

from penstock.simulate.rate_policy import RatePolicy, terms_of
from penstock.simulate.sharing.families import PRIORITY

FAIR = RatePolicy("fair", PRIORITY, terms_of)
