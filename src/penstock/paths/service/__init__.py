"""A service of one's own over several paths: `init`, `send`, `recv`, `write`, `read`, `handle`.

`functions` keeps what an application registers, `message_format` is what travels, `requester` chooses paths and
measures them, `responder` answers, `transports` are the ways over which messages go, and `shared_region` is memory that
processes of one host share.
"""

from penstock.paths.service.functions import Functions
from penstock.paths.service.requester import Answer, Requester, init
from penstock.paths.service.responder import Responder
from penstock.paths.service.shared_region import SharedRegion
from penstock.paths.service.transports import InProcessPath, WirePath, serve_wire

__all__ = [
    "Answer",
    "Functions",
    "InProcessPath",
    "Requester",
    "Responder",
    "SharedRegion",
    "WirePath",
    "init",
    "serve_wire",
]
