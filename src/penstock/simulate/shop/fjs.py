"""The usual text format of flexible job shops (Brandimarte's `.fjs`).

The first line has the number of jobs, the number of machines and often a third number, which is the mean number of
machines for each operation and is ignored. Every further line is a job: the number of its operations, and for each of
them the number of machines that can do it followed by pairs of machine (from 1) and time. Empty lines are skipped.
"""

from pathlib import Path

from penstock.errors import PenstockError
from penstock.graph.input_files import open_regular
from penstock.simulate.shop.shop import Choice, Route, Shop

_LARGEST = 1 << 24
"""Bytes of a file that are read at most: the largest public ones have some ten thousand."""


def read_fjs(path: Path) -> Shop:
    """The shop in a file."""
    try:
        with open_regular(path) as file:
            raw = file.read(_LARGEST + 1)
    except OSError as error:
        raise PenstockError(
            f"{path} cannot be read ({error.strerror or error}): name a file in the .fjs format.", code="file-not-found"
        ) from None
    if len(raw) > _LARGEST:
        raise PenstockError(f"{path} is larger than 16 MiB: give a smaller shop.", code="too-large")
    lines = [(number, line.split()) for number, line in enumerate(raw.decode("ascii", "replace").splitlines(), 1)]
    lines = [(number, words) for number, words in lines if words]
    if not lines or len(lines[0][1]) < 2:
        raise _malformed(path, 1, "the first line needs the number of jobs and the number of machines")
    first = lines[0][1]
    jobs, machines = (_whole(path, lines[0][0], word) for word in first[:2])
    if len(lines) - 1 != jobs:
        raise _malformed(path, lines[0][0], f"it announces {jobs} jobs, and {len(lines) - 1} lines with jobs follow")
    routes = tuple((_route(path, number, words),) for number, words in lines[1:])
    return Shop(path.stem, tuple(f"machine {number}" for number in range(1, machines + 1)), routes)


def fjs_text(shop: Shop) -> str:
    """A shop of one route for each job as text; times are written as whole numbers."""
    if any(len(job) > 1 for job in shop.jobs):
        raise PenstockError(
            f"{shop.name} has jobs with several routes, which the text format cannot hold: choose one for each job.",
            code="unsupported-combination",
        )
    choices = sum(len(operation) for (route,) in shop.jobs for operation in route)
    lines = [f"{len(shop.jobs)} {len(shop.machines)} {choices / shop.operations:.2f}"]
    for (route,) in shop.jobs:
        words = [len(route)]
        for operation in route:
            words.append(len(operation))
            for machine, time in operation:
                words += [machine + 1, round(time)]
        lines.append(" ".join(map(str, words)))
    return "\n".join(lines) + "\n"


def _route(path: Path, line: int, words: list[str]) -> Route:
    numbers = iter([_whole(path, line, word) for word in words])
    try:
        route = tuple(
            tuple(Choice(next(numbers) - 1, float(next(numbers))) for _ in range(next(numbers)))
            for _ in range(next(numbers))
        )
    except (StopIteration, RuntimeError):
        raise _malformed(path, line, "it ends before all its operations are there") from None
    if next(numbers, None) is not None:
        raise _malformed(path, line, "it has numbers behind its last operation")
    for place, operation in enumerate(route, 1):
        machines = [choice.machine for choice in operation]
        twice = next((machine for machine in machines if machines.count(machine) > 1), None)
        if twice is not None:
            raise _malformed(path, line, f"operation {place} names machine {twice + 1} twice")
    return route


def _whole(path: Path, line: int, word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 16):
        raise _malformed(path, line, f"{word[:40]!r} is not a whole number")
    return int(word)


def _malformed(path: Path, line: int, what: str) -> PenstockError:
    return PenstockError(
        f"{path}, line {line}: {what}; write the .fjs format of docs/shops.md.", code="invalid-document"
    )
