"""Steps one at a time, on work that others deliver: the pipeline's batches, or the planned steps on the whole graph.

The engine's bursts do not fit here: a pipeline of threads delivers batches of any size when they are ready, and the
loop reads the weights after each step.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Generic, Protocol, Self, TypeVar

from penstock.pipeline.stages import StageTime
from penstock.train.session import Step

T = TypeVar("T")
Coming = TypeVar("Coming", covariant=True)


class ComingWork(Protocol[Coming]):
    """An iterable of work, delivered until it is closed."""

    def __iter__(self) -> Iterator[Coming]:
        """The pieces of work in order; each is valid until the next is requested."""

    def __enter__(self) -> Self:
        """Start what delivers the work."""

    def close(self) -> None:
        """End every thread, also after an error."""

    def aside(self) -> AbstractContextManager[None]:
        """A context for what is not part of a step."""

    def times(self) -> dict[str, StageTime]:
        """Busy and waiting seconds of the stages so far."""


class OneByOne(Generic[T]):
    """Does a step for each piece of work; `ending` is called before the work is closed."""

    def __init__(
        self, work: ComingWork[T], step: Callable[[T], Step], ending: Callable[[], None] = lambda: None
    ) -> None:
        self._work, self._step, self._ending = work, step, ending

    def __iter__(self) -> Iterator[list[Step]]:
        for each in self._work:
            yield [self._step(each)]

    def __enter__(self) -> Self:
        self._work.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending()
        self._work.close()

    def aside(self) -> AbstractContextManager[None]:
        """A context for what is not part of a step."""
        return self._work.aside()

    def times(self) -> dict[str, StageTime]:
        """The seconds of the work's stages."""
        return self._work.times()
