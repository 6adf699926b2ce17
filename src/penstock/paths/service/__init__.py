"""A service of one's own over several paths: `init`, `send`, `recv`, `write`, `read`, `handle`.

`requester` chooses paths and measures them, `responder` holds what an application registers and answers, `transports`
are the ways that messages are sent, and `regions` are memory that processes of one host share, or memory of a device.
"""

from penstock.paths.service.regions import DeviceRegion, SharedRegion
from penstock.paths.service.requester import Answer, Requester, init
from penstock.paths.service.responder import Functions, Responder
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
