"""`leo`: the source's rule."""

from penstock.paths.rules.families import LEO as RULE
from penstock.paths.selectors.selector import Selector

LEO = Selector("leo", RULE, "least k * toll + base; k counts slow completions in a row, a fast one resets it")
