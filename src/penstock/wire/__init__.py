"""Messages between the processes of a run: authenticated peers, typed messages with raw arrays, no pickle.

`message` is the form of what is sent, large messages in slices; `endpoint` is a process's end of the wire, `channel`
its calls to one peer, and `request_server` answers the calls of others. `egress` decides which message leaves next;
`transport/` is the authenticated and encrypted connection, with the keys that a launcher gives each task. `sockets` has
the TCP sockets and the thread that owns them, `coflows` measures how long transfers that belong together took, and
`options` are the cluster file's fields. What is sent, by whom and when, is decided elsewhere.
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

# Imported on first use, so that reading a cluster file or a command's help does not load sockets.
__getattr__, __dir__ = lazy_names(__name__)
