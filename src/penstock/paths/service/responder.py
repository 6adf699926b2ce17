"""The answering side: application functions at nodes with a parallel capacity, and regions of memory."""

import threading

from penstock.errors import PenstockError, nearest
from penstock.paths.hardware_file import HardwareDocument
from penstock.paths.service.functions import Functions
from penstock.paths.service.message_format import ASK, READ, WRITE, pack_answer, unpack_request

_LARGEST_READ = 1 << 30


class Responder(Functions):
    """Handles requests. A node works on as many at once as its capacity says; others wait, which t4 - t3 counts."""

    def __init__(self, hardware: HardwareDocument) -> None:
        super().__init__()
        self._places = {name: threading.Semaphore(node.capacity) for name, node in hardware.nodes.items()}

    def handle(self, message: bytes, role: str) -> bytes:
        """The answer to a message at the node `role`, with its header. May be called by many threads."""
        arrived = self.now()
        request = unpack_request(message)
        if role not in self._places:
            raise PenstockError(f"There is no node {role!r}{nearest(role, self._places)}", code="unknown-name")
        if request.operation == ASK:
            function = self.get("application", request.name, role)
            with self._places[role]:
                payload = function(request.payload)
        elif request.operation == WRITE:
            self.get("memory", "write", request.name)(request.offset, request.payload)
            payload = b""
        else:
            assert request.operation == READ, "checked when it was unpacked"
            if request.size > _LARGEST_READ:
                raise PenstockError(f"A read of {request.size} bytes is too large.", code="too-large")
            payload = bytes(self.get("memory", "read", request.name)(request.offset, request.size))
        return pack_answer((self.now() - arrived) / 1e3, payload)
