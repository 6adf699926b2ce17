"""The wire fields of a cluster file."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from penstock.graph.documents import StrictDocument

Security = Literal["tls", "token"]
FORMER = ("aes", "curve")
"""Securities of earlier releases, with encryption of their own."""
EgressPolicy = Literal["fair", "fifo", "priority", "turns", "coflow"]
Mark = Annotated[int, Field(ge=0, le=63)]


class WireOptions(StrictDocument):
    """How the processes of a run talk. None of it changes a result."""

    security: Security = Field(
        default="tls",
        description="between tasks, which prove to each other who they are by TLS 1.3 in any case: tls (everything is"
        " encrypted), or token (nothing is after that: a listener on the network reads everything, and whoever can"
        " alter packets can alter it; for one trusted host)",
    )
    tls_ca: str | None = Field(
        default=None,
        description="a file with certificates (PEM) of an authority of your own, on every host; none: certificates are"
        " made for the run, one for each task",
    )
    tls_cert: str | None = Field(default=None, description="with tls_ca: the file of a host's certificate (PEM)")
    tls_key: str | None = Field(
        default=None,
        description="with tls_ca: the file of that certificate's private key (PEM), which only its owner can read",
    )
    egress: EgressPolicy = Field(
        default="fair",
        description="which flow may send next: fair, fifo, priority, turns (earlier batches first), or coflow"
        " (gradients and embeddings before what is made ahead, and in that earlier batches first)",
    )
    call_timeout: float = Field(default=30.0, gt=0, description="seconds without a sign after which a call has failed")
    heartbeat: float = Field(
        default=10.0, gt=0, le=1e6, description="seconds of silence after which a connection is made anew"
    )
    window_bytes: int = Field(
        default=4 << 20, ge=1, description="bytes a process hands to the network ahead of its queue"
    )
    dscp: int | None = Field(
        default=None, ge=0, le=63, description="DSCP mark of what is sent, for networks that heed it"
    )
    dscp_classes: list[Mark] = Field(
        default=[],
        max_length=8,
        description="instead of dscp, marks by urgency, highest first: of gradients and embeddings, of lists, of"
        " features; what has no mark of its own has the last",
    )
    send_buffer_bytes: int | None = Field(
        default=None,
        ge=4096,
        le=(1 << 31) - 1,
        description="bytes that the kernel keeps of a connection, out of egress's reach; none: as many as it likes",
    )
    io_threads: int | None = Field(
        default=None,
        ge=0,
        le=64,
        description="threads of each process that send and receive large messages over connections of their own, beside"
        " the thread for all others; none: one for every four cores, four at most",
    )

    @field_validator("security", mode="before")
    @classmethod
    def _check_former(cls, value: object) -> object:
        if value in FORMER:
            raise ValueError(f"{value} is no longer there: write tls, which encrypts with TLS 1.3")
        return value

    @model_validator(mode="after")
    def _check(self) -> "WireOptions":
        if self.dscp is not None and self.dscp_classes:
            raise ValueError("dscp marks everything and dscp_classes marks by urgency: give one of them")
        if len(set(self.dscp_classes)) < len(self.dscp_classes):
            raise ValueError("two of the dscp_classes are the same")
        files = (self.tls_ca, self.tls_cert, self.tls_key)
        if any(files) and not all(files):
            raise ValueError("tls_ca, tls_cert and tls_key belong together: give all three, or none")
        if any(files) and self.security != "tls":
            raise ValueError(f"tls_ca says nothing with security: {self.security}; write security: tls")
        return self

    @property
    def marks(self) -> list[int | None]:
        """The mark of every class of packets, most urgent first; there is one class at least."""
        return list(self.dscp_classes) or [self.dscp]

    def class_of(self, priority: int) -> int:
        """The class of a flow's packets, by its priority: 0 is the most urgent."""
        return min(max(priority, 0), len(self.marks) - 1)
