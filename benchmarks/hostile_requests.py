"""Requests that no well-behaved client would send to a service: drawn by a seed, as raw bytes."""

import json
import random
import socket
from typing import Any

_NUMBERS = (
    *("0", "1", "3", "-1", "9223372036854775807", "9223372036854775808", "18446744073709551616", "1e400", "NaN", "%00"),
    *("9" * 400, "0x10", "1_0", "٣", "%ED%A0%80", "..%2f..%2ftoken", "%F0%9F%92%A3", "'--", ""),
)
_TEXTS = (
    *("", "\ud800", "x\udfffy", "\x00", "\n\r", "../../token", "/etc/passwd", "~root", "~nobody", "/dev/zero"),
    *("a" * 5000, "💣", "QUEUE/jobs/3/run", "QUEUE/jobs", "QUEUE/token", "QUEUE", "QUEUE/../x", "$(id)", "{{7*7}}"),
)
_FIELDS = (
    *("graph", "run", "model", "hidden", "layers", "fanouts", "batch_size", "epochs", "lr", "seed", "threads"),
    *("device", "module", "partition", "placement", "optimiser_options", "metrics", "dropout", "split", "\ud800"),
)
_PATHS = (
    *("/", "/api", "/api/jobs", "/api/jobs/{}", "/api/jobs/{}/log", "/api/jobs/{}/metrics", "/api/jobs/{}/cancel"),
    *("/api/jobs/{}/retry", "/api/jobs/{}/report", "/api/devices", "/api/openapi.json", "/metrics", "/api/{}", "/{}"),
)
_QUERIES = ("before={}", "offset={}", "limit={}", "state={}", "offset={}&offset={}", "{}", "before={}&limit={}")
_METHODS = ("HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "X" * 50)
_HOSTS = ("127.0.0.1", "localhost", "evil.example", "127.0.0.1:99999", "", "[::1]", "a" * 300, "127.0.0.1.evil.example")
_PATIENCE_S = 2.0


def hostile_request(draws: random.Random, token: str | None, folder: str, complete: bool = False) -> bytes:
    """One request, with the token or without; `folder` is the service's, which some of them name.

    Unless it is to be `complete`, its body may be shorter than it says.
    """
    if draws.random() < 0.05:
        return draws.randbytes(draws.randrange(1, 4000)) + b"\r\n\r\n"
    method = draws.choice(("GET", "GET", "GET", "POST", "POST", "POST", "POST", draws.choice(_METHODS)))
    path = draws.choice(_PATHS).replace("{}", draws.choice(_NUMBERS))
    if draws.random() < 0.4:
        query = draws.choice(_QUERIES)
        while "{}" in query:
            query = query.replace("{}", draws.choice(_NUMBERS), 1)
        path = f"{path}?{query}"
    if method == "POST" and draws.random() < 0.6:
        path = "/api/jobs"
    host = draws.choice(_HOSTS) if draws.random() < 0.3 else "127.0.0.1"
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    body = _body(draws).replace(b"QUEUE", folder.encode()) if method in ("POST", "PUT") else b""
    if body:
        lines += [
            "Content-Type: application/json",
            *([f"Content-Length: {len(body)}"] if complete else _length(draws, len(body))),
        ]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body


def status_of(address: tuple[str, int], request: bytes) -> str:
    """The status of the answer; `closed` where there was none, `late` where it did not come in time."""
    with socket.create_connection(address, timeout=_PATIENCE_S) as connection:
        try:
            connection.sendall(request)
            answer = connection.recv(64)
        except TimeoutError:
            return "late"
        except OSError:
            return "closed"
    return answer.split(b" ")[1].decode() if answer.startswith(b"HTTP/") else "closed"


def _length(draws: random.Random, size: int) -> list[str]:
    drawn = draws.random()
    if drawn < 0.9:
        return [f"Content-Length: {size}"]
    return draws.choice(([f"Content-Length: {size + 100}"], ["Content-Length: -1"], ["Transfer-Encoding: chunked"], []))


def _body(draws: random.Random) -> bytes:
    drawn = draws.random()
    if drawn < 0.1:
        return draws.randbytes(draws.randrange(1, 3000))
    if drawn < 0.15:
        depth = draws.choice((100, 900, 5000, 100_000))
        return b'{"job": {"graph": ' + b"[" * depth + b"]" * depth + b"}}"
    if drawn < 0.2:
        return draws.choice((b"", b"null", b"[]", b"{", b'{"job": NaN}', b'"\xed\xa0\x80"', b"\xff\xfe{\x00}\x00"))
    job = {draws.choice(_FIELDS): _value(draws) for _ in range(draws.choice((1, 1, 1, 2, 3)))}
    job.setdefault("graph", draws.choice(("QUEUE/graph", "cora", "synthetic-arxiv", "QUEUE")))
    fields: dict[str, Any] = {"job": job}
    if draws.random() < 0.3:
        fields["sweep"] = {draws.choice(_FIELDS): [_value(draws) for _ in range(draws.randrange(4))]}
    if draws.random() < 0.2:
        fields["priority"] = _value(draws)
    if draws.random() < 0.1:
        fields[draws.choice(_TEXTS)] = _value(draws)
    return json.dumps(fields).encode()


def _value(draws: random.Random, depth: int = 0) -> Any:
    kind = draws.randrange(7 if depth < 3 else 5)
    if kind == 0:
        return draws.choice((0, 1, -1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, True, None))
    if kind == 1:
        return draws.choice((0.0, -0.0, 1e308, float("nan"), float("inf"), float("-inf"), 5e-324))
    if kind in (2, 3, 4):
        return draws.choice(_TEXTS)
    if kind == 5:
        return [_value(draws, depth + 1) for _ in range(draws.randrange(4))]
    return {draws.choice(_TEXTS): _value(draws, depth + 1) for _ in range(draws.randrange(3))}
