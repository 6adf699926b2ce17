"""`ipipe`: migration between paths."""

from penstock.paths.rules.families import IPIPE as RULE
from penstock.paths.selectors.selector import Selector

IPIPE = Selector("ipipe", RULE, "move to the next path while end-to-end times exceed the base time, and back")
