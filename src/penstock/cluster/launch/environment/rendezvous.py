"""How the processes of a job find process 0, and how both sides prove who they are.

The launcher's address is in torchrun's store, or in one of its own. Anybody may write there, so nothing but that
address is: whoever answers at it must prove to be the launcher. Keys are derived from a random key that all processes
of a job share.
"""

import hmac
import os
import re
import stat
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed

from penstock.cluster.launch.environment.place import Place
from penstock.errors import PenstockError
from penstock.graph.input_files import read_document
from penstock.wire import Credentials, make_credentials

_KEY = "penstock/launcher"


def publish(place: Place, address: str, patience: float) -> Any:
    """Tell where the launcher listens, for as long as what is returned is kept."""
    store = _store(place, not place.met, patience)
    store.set(_KEY, address)
    return store


def find_launcher(place: Place, patience: float) -> str:
    """The address at which the launcher listens."""
    try:
        address: bytes = _store(place, False, patience).get(_KEY)
    except (RuntimeError, ValueError) as error:
        raise _unmet(place, error) from None
    return address.decode("ascii", "replace")


def _store(place: Place, host: bool, patience: float) -> Any:
    torch: Any = distributed
    wait = timedelta(seconds=patience)
    try:
        return torch.TCPStore(place.master, place.port, None, host, wait, wait_for_workers=False)
    except (RuntimeError, ValueError, OSError) as error:
        raise _unmet(place, error) from None


def _unmet(place: Place, error: BaseException) -> PenstockError:
    said = str(error).strip().splitlines()[0]
    return PenstockError(
        f"The job's processes cannot connect at {place.master}:{place.port} ({said}): check that process 0 runs, and"
        " that MASTER_ADDR and MASTER_PORT are its host and a free port there.",
        code="peer-lost",
    )


LAUNCHER = "launcher"
SECRET, SECRET_FILE = "PENSTOCK_SECRET", "PENSTOCK_SECRET_FILE"
_SECRET = re.compile(r"[0-9A-Fa-f]{64}")
_MEND = f"say `export {SECRET}=$(openssl rand -hex 32)` where the job is submitted, or name a file in {SECRET_FILE}"


def agent_name(node: int) -> str:
    """An agent's name on the wire."""
    return f"agent-{node}"


def read_secret(variables: Mapping[str, str] = os.environ) -> str:
    """From the environment, or the file it names."""
    secret = variables.get(SECRET, "")
    if not secret and (path := variables.get(SECRET_FILE)):
        try:
            if stat.S_IMODE(Path(path).stat().st_mode) & 0o077:
                raise PenstockError(
                    f"The secret in {path} can be read by others than its owner: `chmod 600 {path}`.",
                    code="invalid-value",
                )
            secret = read_document(Path(path)).strip()
        except (OSError, ValueError) as error:
            raise PenstockError(
                f"The secret in {path} cannot be read ({error}): name another file.", code="damaged-file"
            ) from None
    if not secret:
        raise PenstockError(f"The job's processes have no shared secret: {_MEND}.", code="option-missing")
    if not _SECRET.fullmatch(secret):
        # Of a phrase the keys could be guessed, by anybody who has seen a certificate that was made of it.
        raise PenstockError(
            f"The job's secret is not a random key of 64 hexadecimal digits: {_MEND}.", code="value-out-of-range"
        )
    return secret.lower()


def derived_credentials(name: str, nodes: int, secret: str, job: str) -> Credentials:
    """What a process of a job needs to be believed. Another job's, of the same secret, are different."""
    names = [LAUNCHER, *map(agent_name, range(1, nodes))]
    seed = hmac.digest(bytes.fromhex(secret), f"penstock launcher 2 {job}".encode(), "sha256")
    return make_credentials(names, seed)[name]
