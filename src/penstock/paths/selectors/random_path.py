"""`random`: any path."""

from penstock.paths.rules.families import RANDOM as RULE
from penstock.paths.selectors.selector import Selector

RANDOM = Selector("random", RULE, "any path, by a hash of the request's number")
