"""`greedy-intra`: by the last completion, network left out."""

from penstock.paths.rules.families import GREEDY_INTRA as RULE
from penstock.paths.selectors.selector import Selector

GREEDY_INTRA = Selector("greedy-intra", RULE, "the path whose last request took least at both hosts")
