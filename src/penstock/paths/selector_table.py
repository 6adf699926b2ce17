"""The path selectors by name; a new one is an entry in `selectors` and one line here."""

from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.registry import Registry

if TYPE_CHECKING:
    from penstock.paths.selectors import Selector

SELECTORS: "Registry[Selector]" = Registry(
    "path selector",
    "penstock.path_selectors",
    {
        "leo-smooth": "penstock.paths.selectors:LEO_SMOOTH",
        "leo": "penstock.paths.selectors:LEO",
        "leo-per-place": "penstock.paths.selectors:LEO_PER_PLACE",
        "greedy-end-to-end": "penstock.paths.selectors:GREEDY_END_TO_END",
        "greedy-intra": "penstock.paths.selectors:GREEDY_INTRA",
        "ipipe": "penstock.paths.selectors:IPIPE",
        "random": "penstock.paths.selectors:RANDOM",
        "static": "penstock.paths.selectors:STATIC",
        "node": "penstock.paths.selectors:ONE_NODE",
        "clairvoyant": "penstock.paths.selectors:CLAIRVOYANT",
        "rolling-horizon": "penstock.paths.selectors:ROLLING_HORIZON",
    },
    "penstock.paths.selectors:Selector",
    renamed={"optimum": "rolling-horizon"},
)


def selector_named(name: str) -> "tuple[Selector, str]":
    """The selector of that name and what follows a colon in it, as in `node:responder.cpu`."""
    word, _, argument = name.partition(":")
    selector = SELECTORS[word]
    if bool(argument) != bool(selector.argument):
        hint = f"write {word}:{selector.argument}" if selector.argument else f"write {word} alone"
        raise PenstockError(f"The path selector {name!r} cannot be read: {hint}.", code="invalid-value")
    return selector, argument
