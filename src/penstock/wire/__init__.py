"""Messages between the processes of a run: authenticated peers, typed messages with raw arrays, no pickle.

`keys` is what a launcher hands each task, `message` what is said and its form, `post` a process's end of the wire and
`channel` its calls to one peer; `egress` decides what leaves next, and `transport` is the authenticated and encrypted
connection it leaves over. Behind them: `loop` is the thread that owns all sockets, `addresses` where they are,
`exchange` what that thread does, `link` a channel's connection, `pending` a call under way, `serving` and `answer` the
other side of it, `slices` what is large in pieces, `loan` knows when memory is no longer read, `reuse` keeps what
messages are received into, `meter` counts what a thread's calls bring, `coflows` what those that belong together took.
What is said, by whom and when, is not decided here.
"""

from typing import TYPE_CHECKING

from penstock.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.wire.channel import Channel
    from penstock.wire.coflows import coflow_figures, read_tallies
    from penstock.wire.egress import FlowCount
    from penstock.wire.errors import PeerLost, RemoteError
    from penstock.wire.keys import Credentials, KeyPair, key_pair, make_credentials, make_keys
    from penstock.wire.message import Limits, Malformed, Message
    from penstock.wire.meter import own_meter
    from penstock.wire.options import WireOptions
    from penstock.wire.pending import Pending
    from penstock.wire.post import Post
    from penstock.wire.reuse import keep_freed_memory

__all__ = [
    "Channel",
    "Credentials",
    "FlowCount",
    "KeyPair",
    "Limits",
    "Malformed",
    "Message",
    "PeerLost",
    "Pending",
    "Post",
    "RemoteError",
    "WireOptions",
    "coflow_figures",
    "keep_freed_memory",
    "key_pair",
    "make_credentials",
    "make_keys",
    "own_meter",
    "read_tallies",
]

# Looked up on first use, so that reading a cluster file or a command's help waits for no sockets.
__getattr__ = lazy_names(
    __name__,
    {
        "penstock.wire.channel": ("Channel",),
        "penstock.wire.coflows": ("coflow_figures", "read_tallies"),
        "penstock.wire.egress": ("FlowCount",),
        "penstock.wire.errors": ("PeerLost", "RemoteError"),
        "penstock.wire.keys": ("Credentials", "KeyPair", "key_pair", "make_credentials", "make_keys"),
        "penstock.wire.message": ("Limits", "Malformed", "Message"),
        "penstock.wire.meter": ("own_meter",),
        "penstock.wire.options": ("WireOptions",),
        "penstock.wire.pending": ("Pending",),
        "penstock.wire.post": ("Post",),
        "penstock.wire.reuse": ("keep_freed_memory",),
    },
)


def __dir__() -> list[str]:
    return __all__
