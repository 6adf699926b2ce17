"""The wire's part of a job."""

from typing import Literal

from pydantic import Field

from penstock.graph.documents import StrictDocument

Security = Literal["curve", "token"]
EgressPolicy = Literal["fair", "fifo", "priority", "turns"]


class WireOptions(StrictDocument):
    """How the processes of a run talk. None of it changes a result."""

    security: Security = Field(
        default="curve",
        description="between tasks: curve (authenticated and encrypted) or token (authenticated, in the clear, about"
        " four times as fast: for networks of your own)",
    )
    egress: EgressPolicy = Field(
        default="fair",
        description="which flow may send next: fair, fifo, priority, or turns (earlier batches first)",
    )
    call_timeout: float = Field(default=30.0, gt=0, description="seconds without a sign after which a call has failed")
    heartbeat: float = Field(default=10.0, gt=0, description="seconds of silence after which a connection is made anew")
    window_bytes: int = Field(
        default=4 << 20, ge=1, description="bytes a process hands to the network ahead of its queue"
    )
    dscp: int | None = Field(
        default=None, ge=0, le=63, description="DSCP mark of what is sent, for networks that heed it"
    )
    io_threads: int = Field(default=1, ge=1, description="threads a process that encrypt and move bytes")
