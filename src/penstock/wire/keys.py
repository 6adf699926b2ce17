"""Certificates that authenticate a task: made for one run and passed to each task by the launcher.

Every task has a private key and a certificate of its own. An authority that is made for the run alone signs the
certificates, and its private key is forgotten as soon as it has: nobody can make another one. Who a peer is, however,
is not what a certificate says but the public key in it, which must be the one that the run knows the task by. A task
that is started again has the same key, so nothing has to be told to the others.
"""

import datetime
import hmac
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import ValidationError

from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument, first_problem

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}")
_KEY = re.compile(r"[0-9a-f]{64}")
_SEED_BYTES = 32
_AUTHORITY = ">authority"
"""No task can be called that."""
_BEGINS = datetime.datetime(2000, 1, 1)
_ENDS = datetime.datetime(9999, 12, 31, 23, 59, 59)
"""What RFC 5280 writes where no end is known: certificates end with the run, whatever clocks of its hosts say."""


@dataclass(frozen=True)
class Credentials:
    """What one task of a run is given: its own key and certificate, and the public keys of all tasks."""

    name: str
    secret: str = field(repr=False)
    """The private key (Ed25519), 64 hexadecimal digits."""
    certificate: str
    """Signed by the run's authority, in PEM."""
    authority: str
    """The certificate of the run's authority, in PEM."""
    peers: Mapping[str, str]
    """Public keys by task name, of all tasks of the run, 64 hexadecimal digits each."""

    def to_json(self) -> str:
        """For a file or a pipe that nobody else reads."""
        return json.dumps({**vars(self), "peers": dict(self.peers)})

    @classmethod
    def from_json(cls, text: str) -> "Credentials":
        """Read what `to_json` wrote, and check it."""
        try:
            credentials = cls(**_Document.model_validate_json(text).model_dump())
            problem = _problem(credentials)
        except ValidationError as error:
            problem = first_problem(error)
        if problem:
            raise PenstockError(
                f"The credentials are not valid ({problem}): hand them out again.", code="invalid-document"
            )
        return credentials

    @property
    def private_key(self) -> Ed25519PrivateKey:
        """The key that belongs to the certificate."""
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self.secret))

    def private_pem(self) -> str:
        """Certificate and private key, as OpenSSL reads them."""
        return self.certificate + self.private_key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        ).decode("ascii")


def make_credentials(names: Sequence[str], seed: bytes | None = None) -> dict[str, Credentials]:
    """Keys and certificates for the tasks of a new run, by name.

    From the same secret `seed` come the same: processes that share one need not be told each other's keys.
    """
    for name in names:
        if not _NAME.fullmatch(name):
            raise PenstockError(
                f"{name!r} cannot name a task: use up to 64 letters, digits and . _ : @ -, a letter or digit first.",
                code="invalid-value",
            )
        if names.count(name) > 1:
            raise PenstockError(f"Two tasks are called {name!r}: give each a name of its own.", code="duplicate")
    seed = secrets.token_bytes(_SEED_BYTES) if seed is None else seed
    secret = {name: hmac.digest(seed, name.encode(), "sha256") for name in [*names, _AUTHORITY]}
    keys = {name: Ed25519PrivateKey.from_private_bytes(each) for name, each in secret.items()}
    authority = keys.pop(_AUTHORITY)
    certificates = {name: _certificate(name, key.public_key(), authority) for name, key in keys.items()}
    signer = _certificate(_AUTHORITY, authority.public_key(), authority)
    peers = {name: _hex(key.public_key()) for name, key in keys.items()}
    return {name: Credentials(name, secret[name].hex(), certificates[name], signer, peers) for name in names}


def public_key_of(certificate: bytes) -> str:
    """The public key in a certificate (DER), as `Credentials.peers` has it; empty where it is of another kind."""
    try:
        key = x509.load_der_x509_certificate(certificate).public_key()
    except Exception:  # whatever a parser finds wrong with what a stranger sent, it is no task's key
        return ""
    return _hex(key) if isinstance(key, Ed25519PublicKey) else ""


def _certificate(name: str, key: Ed25519PublicKey, authority: Ed25519PrivateKey) -> str:
    """Signed by the authority, in PEM: every bit of it follows from the arguments."""
    is_authority = name == _AUTHORITY
    signs = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _AUTHORITY)]))
        .public_key(key)
        .serial_number(int.from_bytes(key.public_bytes_raw()[:8], "big") | 1)
        .not_valid_before(_BEGINS)
        .not_valid_after(_ENDS)
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
        .add_extension(signs, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
    )
    if not is_authority:
        builder = builder.add_extension(usages, critical=False)
    return builder.sign(authority, None).public_bytes(Encoding.PEM).decode("ascii")


class _Document(StrictDocument):
    name: str
    secret: str
    certificate: str
    authority: str
    peers: dict[str, str]


def _problem(credentials: Credentials) -> str:
    """What is wrong with them; empty when nothing is."""
    for name, key in credentials.peers.items():
        if not _NAME.fullmatch(name):
            return f"{name!r} cannot name a task"
        if not _KEY.fullmatch(key):
            return f"the key of {name} is no key"
    if len(set(credentials.peers.values())) < len(credentials.peers):
        return "two tasks have one key"
    if not _KEY.fullmatch(credentials.secret):
        return "the secret key is no key"
    public = _hex(credentials.private_key.public_key())
    if credentials.peers.get(credentials.name) != public:
        return f"the key of {credentials.name} is not the one its peers know"
    try:
        x509.load_pem_x509_certificate(credentials.authority.encode())
        own = x509.load_pem_x509_certificate(credentials.certificate.encode()).public_bytes(Encoding.DER)
    except ValueError:
        return "a certificate cannot be read"
    return "" if public_key_of(own) == public else "the certificate does not belong to the secret key"


def _hex(key: Ed25519PublicKey) -> str:
    return key.public_bytes_raw().hex()
