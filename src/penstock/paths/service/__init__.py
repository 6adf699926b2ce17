"""A service of one's own over several paths: `init`, `send`, `recv`, `write`, `read`, `handle`.

`requester` chooses paths and measures them, `responder` holds what an application registers, its regions of memory for
one-sided reads and writes, and answers, and `transports` are the ways that messages are sent.
"""

from penstock.paths.service.requester import Answer, Requester, init
from penstock.paths.service.responder import DeviceRegion, Functions, Responder, SharedRegion
from penstock.paths.service.transports import InProcessPath, SocketPath, SocketServer, WirePath, serve_wire

__all__ = [
    "Answer",
    "DeviceRegion",
    "Functions",
    "InProcessPath",
    "Requester",
    "Responder",
    "SharedRegion",
    "SocketPath",
    "SocketServer",
    "WirePath",
    "init",
    "serve_wire",
]
