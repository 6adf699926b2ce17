"""How a job's processes find process 0: the launcher's address is in torchrun's store, or in one of its own.

Anybody may write there, so nothing but that address is: whoever answers at it must prove to be the launcher.
"""

from datetime import timedelta
from typing import Any

from torch import distributed

from penstock.cluster.launch.environment.place import Place
from penstock.errors import PenstockError

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
