"""`fifo`: flows in the order in which they started, each takes all that is left along its path.

The source says only that DistDGL sends from FIFO queues. One order for the whole network is ours; flows that start in
the same instant are ordered by iteration, then by number.
"""

from penstock.simulate.rates.families import BY_ARRIVAL
from penstock.simulate.rates.policy import RatePolicy, terms_of

FIFO = RatePolicy("fifo", BY_ARRIVAL, terms_of)
