"""What came along one path, as runs report it."""

from typing import NamedTuple


class PathUse(NamedTuple):
    """What came along one path: rows, their bytes, and seconds from requests to their last rows."""

    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def plus(self, rows: int, size: int, seconds: float) -> "PathUse":
        """With one more answer."""
        return PathUse(self.rows + rows, self.bytes + size, self.seconds + seconds)
