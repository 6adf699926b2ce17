"""`greedy-end-to-end`: by the last completion, network included."""

from penstock.paths.rules.families import GREEDY_END_TO_END as RULE
from penstock.paths.selectors.selector import Selector

GREEDY_END_TO_END = Selector("greedy-end-to-end", RULE, "the path whose last request took least from end to end")
