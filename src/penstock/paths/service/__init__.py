"""A service of one's own over several paths: `init`, `send`, `recv`, `write`, `read`, `handle`.

`functions` keeps what an application registers, `message_format` is what travels, `requester` chooses paths and
measures them, `responder` answers, `transports` and `socket_path` are the ways over which messages go, `shared_region`
is memory that processes of one host share, and `device_region` memory of a device.
"""

from penstock.paths.service.device_region import DeviceRegion
from penstock.paths.service.functions import Functions
from penstock.paths.service.requester import Answer, Requester, init
from penstock.paths.service.responder import Responder
from penstock.paths.service.shared_region import SharedRegion
from penstock.paths.service.socket_path import SocketPath, SocketServer
from penstock.paths.service.transports import InProcessPath, WirePath, serve_wire

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
