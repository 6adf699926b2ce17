"""What the HTTP interface of a service speaks for."""

from dataclasses import dataclass

from penstock.service.feed import Feed
from penstock.service.operations import Operations
from penstock.service.scheduler import Scheduler


@dataclass
class Served:
    """A service as its HTTP interface knows it."""

    operations: Operations
    scheduler: Scheduler
    feed: Feed
    closing: bool = False
    """Whether the service ends, and streams of events with it."""
