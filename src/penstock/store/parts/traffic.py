"""Counts of what pulls brought over the wire."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """What pulls of one field brought over the wire."""

    rows: int = 0
    bytes: int = 0
    minimum: int = 0
    """Bytes that had to be: distinct rows of other machines, by call, as they are stored."""

    def plus(self, rows: int, size: int, minimum: int) -> "Traffic":
        """With one more answer counted."""
        return Traffic(self.rows + rows, self.bytes + size, self.minimum + minimum)
