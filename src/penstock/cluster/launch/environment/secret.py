"""Keys for the launcher and the agents, derived from a secret that all processes of a job share."""

import hmac
import os
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import PenstockError
from penstock.wire import Credentials, key_pair

LAUNCHER = "launcher"
SECRET, SECRET_FILE = "PENSTOCK_SECRET", "PENSTOCK_SECRET_FILE"
_SHORTEST = 16
_MEND = f"say `export {SECRET}=$(openssl rand -hex 32)` where the job is submitted, or name a file in {SECRET_FILE}"


def agent_name(node: int) -> str:
    """An agent's name on the wire."""
    return f"agent-{node}"


def read_secret(variables: Mapping[str, str] = os.environ) -> str:
    """From the environment, or the file it names."""
    secret = variables.get(SECRET, "")
    if not secret and (path := variables.get(SECRET_FILE)):
        try:
            secret = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PenstockError(
                f"The secret in {path} cannot be read ({error}): name another file.", code="damaged-file"
            ) from None
    if not secret:
        raise PenstockError(f"The job's processes have no shared secret: {_MEND}.", code="option-missing")
    if len(secret) < _SHORTEST:
        raise PenstockError(
            f"The job's secret has fewer than {_SHORTEST} characters: {_MEND}.", code="value-out-of-range"
        )
    return secret


def derived_credentials(name: str, nodes: int, secret: str, job: str) -> Credentials:
    """What a process of a job needs to be believed. Another job's, of the same secret, are different."""
    names = [LAUNCHER, *map(agent_name, range(1, nodes))]
    pairs = {each: key_pair(_derived(secret, f"{job}/{each}")) for each in names}
    peers = {each: pair.public for each, pair in pairs.items()}
    return Credentials(name, pairs[name], peers, _derived(secret, f"{job}/").hex())


def _derived(secret: str, purpose: str) -> bytes:
    return hmac.new(secret.encode(), f"penstock launcher 1 {purpose}".encode(), "sha256").digest()
