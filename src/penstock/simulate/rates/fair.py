"""`fair`: all flows alike, max-min; what a network does that knows nothing of coflows (Megatron's case)."""

from penstock.simulate.rates.families import PRIORITY
from penstock.simulate.rates.policy import RatePolicy, terms_of

FAIR = RatePolicy("fair", PRIORITY, terms_of)
