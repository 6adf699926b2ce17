"""The applications and hardware models that come with Penstock, by name; a file of the user's by its path."""

from pathlib import Path

from penstock.errors import PenstockError, nearest
from penstock.paths.application_file import ApplicationDocument, read_application
from penstock.paths.hardware_file import HardwareDocument, read_hardware

_FOLDER = Path(__file__).parent / "shipped"


def shipped_applications() -> list[str]:
    """Names of the applications that come with Penstock."""
    return _names("applications")


def shipped_hardware() -> list[str]:
    """Names of the hardware models that come with Penstock."""
    return _names("hardware")


def find_application(name: str) -> ApplicationDocument:
    """A shipped application by its name, or the application file at that path."""
    return read_application(_found("applications", name, "application"))


def find_hardware(name: str) -> HardwareDocument:
    """A shipped hardware model by its name, or the hardware file at that path."""
    return read_hardware(_found("hardware", name, "hardware model"))


def _names(kind: str) -> list[str]:
    return sorted(file.stem for file in (_FOLDER / kind).glob("*.yaml"))


def _found(kind: str, name: str, what: str) -> Path:
    if name in _names(kind):
        return _FOLDER / kind / f"{name}.yaml"
    if "/" in name or name.endswith((".yaml", ".yml")):
        return Path(name)
    raise PenstockError(f"No {what} is called {name!r}{nearest(name, _names(kind))}", code="unknown-name")
