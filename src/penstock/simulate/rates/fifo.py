"""`fifo`: flows in the order in which they started, each takes all that is left along its path.

The source says only that DistDGL sends from FIFO queues. One order for the whole network is ours; flows that start in
the same instant are ordered by iteration, then by number.
"""

from penstock.simulate.rate_policy import RatePolicy, terms_of
from penstock.simulate.sharing.families import BY_ARRIVAL

FIFO = RatePolicy("fifo", BY_ARRIVAL, terms_of)
