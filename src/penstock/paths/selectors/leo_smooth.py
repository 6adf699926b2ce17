"""`leo-smooth`: the source's rule with steadier estimates."""

from penstock.paths.rules.families import LEO_SMOOTH as RULE
from penstock.paths.selectors.selector import Selector

LEO_SMOOTH = Selector(
    "leo-smooth",
    RULE,
    "least expected end: queues of the requests in progress, shared by paths that share a link, and an average of what"
    " completions took beyond that",
)
