"""A base class for objects that a `with` statement closes."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class ClosedOnExit(ABC):
    """Closed at the end of its `with` statement, also after an error."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources that the object holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
