"""`fair`: all flows alike, max-min; what a network does that knows nothing of coflows (Megatron's case)."""

from penstock.simulate.rate_policy import RatePolicy, terms_of
from penstock.simulate.sharing.families import PRIORITY

FAIR = RatePolicy("fair", PRIORITY, terms_of)
