"""Keys that authenticate a task: made for one run and passed to each task by the launcher."""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pydantic import ValidationError

from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument, first_problem

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}")
_KEY_BYTES = 32
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class KeyPair:
    """A key pair of X25519, 64 hexadecimal digits each."""

    public: str
    secret: str = field(repr=False)


@dataclass(frozen=True)
class Credentials:
    """What one task of a run is given: its own keys, everybody's public key, and the secret all of them share."""

    name: str
    keys: KeyPair
    peers: Mapping[str, str]
    """Public keys by task name, of all tasks of the run."""
    token: str = field(repr=False)

    def to_json(self) -> str:
        """For a file or a pipe that nobody else reads."""
        keys = {"public": self.keys.public, "secret": self.keys.secret}
        return json.dumps({"name": self.name, **keys, "peers": dict(self.peers), "token": self.token})

    @classmethod
    def from_json(cls, text: str) -> "Credentials":
        """Read what `to_json` wrote, and check it."""
        try:
            document = _Document.model_validate_json(text)
        except ValidationError as error:
            raise PenstockError(
                f"The credentials are not valid ({first_problem(error)}): hand them out again.", code="invalid-document"
            ) from None
        keys = KeyPair(document.public, document.secret)
        credentials = cls(document.name, keys, document.peers, document.token)
        if problem := _problem(credentials):
            raise PenstockError(
                f"The credentials are not valid ({problem}): hand them out again.", code="invalid-document"
            )
        return credentials


def make_keys() -> KeyPair:
    """A new key pair."""
    return key_pair(secrets.token_bytes(_KEY_BYTES))


def key_pair(secret: bytes) -> KeyPair:
    """The pair of a secret key: any 32 bytes are one."""
    public = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
    return KeyPair(public.hex(), secret.hex())


def make_credentials(names: Sequence[str]) -> dict[str, Credentials]:
    """Keys for the tasks of a new run, by name."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise PenstockError(
                f"{name!r} cannot name a task: use up to 64 letters, digits and . _ : @ -, a letter or digit first.",
                code="invalid-value",
            )
        if names.count(name) > 1:
            raise PenstockError(f"Two tasks are called {name!r}: give each a name of its own.", code="duplicate")
    pairs = {name: make_keys() for name in names}
    peers = {name: pair.public for name, pair in pairs.items()}
    token = secrets.token_hex(_KEY_BYTES)
    return {name: Credentials(name, pair, peers, token) for name, pair in pairs.items()}


class _Document(StrictDocument):
    name: str
    public: str
    secret: str
    peers: dict[str, str]
    token: str


def _problem(credentials: Credentials) -> str:
    """What is wrong with them; empty when nothing is."""
    for name, key in credentials.peers.items():
        if not _NAME.fullmatch(name):
            return f"{name!r} cannot name a task"
        if not _is_key(key):
            return f"the key of {name} is no key"
    if len(set(credentials.peers.values())) < len(credentials.peers):
        return "two tasks have one key"
    if not _is_key(credentials.keys.secret):
        return "the secret key is no key"
    if key_pair(bytes.fromhex(credentials.keys.secret)) != credentials.keys:
        return "the public key does not belong to the secret one"
    if credentials.peers.get(credentials.name) != credentials.keys.public:
        return f"the key of {credentials.name} is not the one its peers know"
    if len(credentials.token) < _KEY_BYTES:
        return "the token is too short"
    return ""


def _is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None
