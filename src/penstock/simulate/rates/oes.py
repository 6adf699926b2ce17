"""`oes`: every link is divided equally among its active flows, and a flow gets the least of its links' shares.

On a star this is min(Bin / in-degree, Bout / out-degree), degrees counting active flows. The source works in time
steps; rates change only when something starts or ends, so continuous time is exact. Its listing starts every task at
once, its text only those that wait for nothing: we follow the text.
"""

from penstock.simulate.rate_policy import RatePolicy, terms_of
from penstock.simulate.sharing.families import PROPORTIONAL

OES = RatePolicy("oes", PROPORTIONAL, terms_of)
