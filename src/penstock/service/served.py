"""What the HTTP interface of a service speaks for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.service.feed import Feed
from penstock.service.operations import Operations
from penstock.service.records import JobRecord, best_of
from penstock.service.scheduler import Scheduler


@dataclass
class Served:
    """A service as its HTTP interface knows it."""

    operations: Operations
    scheduler: Scheduler
    feed: Feed
    closing: bool = False
    """Whether the service ends, and streams of events with it."""

    def shown(self, records: Sequence[JobRecord]) -> list[dict[str, Any]]:
        """Jobs as users see them: those that run with their seconds and metrics so far, and the best of a sweep
        marked."""
        live = self.scheduler.live()
        best = {
            sweep: best_of(
                {
                    number: live.get(number, {}).get("metric", metric)
                    for number, metric in self.operations.database.metrics_of_sweep(sweep).items()
                }
            )
            for sweep in {record.sweep for record in records if record.sweep is not None}
        }
        return [
            {
                **record.shown(),
                **live.get(record.id, {}),
                "best": record.sweep is not None and best[record.sweep] == record.id,
            }
            for record in records
        ]
