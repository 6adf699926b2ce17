"""Messages between the processes of a run: authenticated peers, typed messages with raw arrays, no pickle.

`keys` holds what a launcher hands each task, `message` the form of what is sent, `endpoint` a process's end of the wire
and `channel` its calls to one peer. `egress` decides which message leaves next; `transport` is the authenticated and
encrypted connection that it leaves over. Behind them, `loop` is the thread owning all sockets, `exchange` what that
thread does, `link` a channel's connection, `pending_call` a call under way, `request_server` and `answer` the other
side of it. `slices` sends large messages in pieces, `loan` knows when memory is no longer read, and `coflows` counts
how long transfers that belong together took. What is sent, by whom and when, is not decided here.
"""

from typing import TYPE_CHECKING

from penstock.imports import lazy_names

if TYPE_CHECKING:
    from penstock.wire.channel import Channel, PeerLost, PendingCall, RemoteError, own_meter
    from penstock.wire.coflows import coflow_figures, read_tallies
    from penstock.wire.egress import FlowCount
    from penstock.wire.endpoint import Endpoint
    from penstock.wire.message import Limits, Malformed, Message
    from penstock.wire.options import WireOptions
    from penstock.wire.transport.tls import Credentials, make_credentials

__all__ = [
    "Channel",
    "Credentials",
    "Endpoint",
    "FlowCount",
    "Limits",
    "Malformed",
    "Message",
    "PeerLost",
    "PendingCall",
    "RemoteError",
    "WireOptions",
    "coflow_figures",
    "make_credentials",
    "own_meter",
    "read_tallies",
]

# Looked up on first use, so that reading a cluster file or a command's help waits for no sockets.
__getattr__ = lazy_names(
    __name__,
    {
        "penstock.wire.channel": (
            "Channel",
            "PeerLost",
            "PendingCall",
            "RemoteError",
            "own_meter",
        ),
        "penstock.wire.coflows": (
            "coflow_figures",
            "read_tallies",
        ),
        "penstock.wire.egress": ("FlowCount",),
        "penstock.wire.transport.tls": (
            "Credentials",
            "make_credentials",
        ),
        "penstock.wire.message": (
            "Limits",
            "Malformed",
            "Message",
        ),
        "penstock.wire.options": ("WireOptions",),
        "penstock.wire.endpoint": ("Endpoint",),
    },
)


def __dir__() -> list[str]:
    return __all__
