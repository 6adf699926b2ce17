"""Ways to choose a path, one file for each, and the registry of them.

`SELECTORS` is the table of contents: a new selector is one file and one line here (docs/paths.md). The kernels that
decide are in `paths/rules`.
"""

from penstock.errors import PenstockError, nearest
from penstock.paths.selectors.greedy_end_to_end import GREEDY_END_TO_END
from penstock.paths.selectors.greedy_intra import GREEDY_INTRA
from penstock.paths.selectors.ipipe import IPIPE
from penstock.paths.selectors.leo import LEO
from penstock.paths.selectors.leo_smooth import LEO_SMOOTH
from penstock.paths.selectors.one_node import ONE_NODE
from penstock.paths.selectors.optimum import OPTIMUM
from penstock.paths.selectors.random_path import RANDOM
from penstock.paths.selectors.selector import Case, Prepared, Selector
from penstock.paths.selectors.static import STATIC

SELECTORS = {
    selector.name: selector
    for selector in (
        LEO_SMOOTH,
        LEO,
        GREEDY_END_TO_END,
        GREEDY_INTRA,
        IPIPE,
        RANDOM,
        STATIC,
        ONE_NODE,
        OPTIMUM,
    )
}

__all__ = ["SELECTORS", "Case", "Prepared", "Selector", "selector_named"]


def selector_named(name: str) -> tuple[Selector, str]:
    """The selector of that name and what follows a colon in it, as in `node:responder.cpu`."""
    word, _, argument = name.partition(":")
    selector = SELECTORS.get(word)
    if selector is None:
        raise PenstockError(f"No path selector is called {word!r}{nearest(word, SELECTORS)}", code="unknown-name")
    if bool(argument) != bool(selector.argument):
        hint = f"write {word}:{selector.argument}" if selector.argument else f"write {word} alone"
        raise PenstockError(f"The path selector {name!r} cannot be read: {hint}.", code="invalid-value")
    return selector, argument
