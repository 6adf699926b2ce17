"""`maxmin`: max-min fair rates by progressive filling. What `oes` leaves unused is given to whoever can take it.

What long-lived TCP flows of one round-trip time come near to.
"""

from penstock.simulate.rate_policy import RatePolicy, terms_of
from penstock.simulate.sharing.families import PRIORITY

MAXMIN = RatePolicy("maxmin", PRIORITY, terms_of)
