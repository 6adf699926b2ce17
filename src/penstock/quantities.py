"""Counts and differences as people write them: `1 epoch`, `20 epochs`, `+3 %`."""

_SINGULARS = {
    "vertices": "vertex",
    "batches": "batch",
    "classes": "class",
    "matches": "match",
    "losses": "loss",
    "entries": "entry",
    "copies": "copy",
    "processes": "process",
}


def counted(count: int, plural: str) -> str:
    """A count with its noun, given in the plural: `counted(1, "epochs")` is `1 epoch`."""
    return f"{count:,} {singular(plural) if count == 1 else plural}"


def singular(plural: str) -> str:
    """The singular of a plural; of several words, that of the last one."""
    head, space, last = plural.rpartition(" ")
    return f"{head}{space}{_SINGULARS.get(last, last.removesuffix('s'))}"


def percent(share: float) -> str:
    """A share of one as a percentage without decimals; what rounds to nothing has no sign: `62 %`, `0 %`."""
    return f"{round(share * 100) + 0:.0f} %"


def signed_percent(share: float, digits: int = 0) -> str:
    """A difference as a percentage with its sign; one that rounds to nothing has none: `+3 %`, `-12 %`, `0 %`."""
    text = f"{share * 100:+.{digits}f}"
    return f"{text} %" if any(digit in "123456789" for digit in text) else "0 %"
