"""`maxmin`: max-min fair rates by progressive filling. What `oes` leaves unused is given to whoever can take it.

What long-lived TCP flows of one round-trip time come near to.
"""

from penstock.simulate.rates.families import PRIORITY
from penstock.simulate.rates.policy import RatePolicy, terms_of

MAXMIN = RatePolicy("maxmin", PRIORITY, terms_of)
