"""The system's commands for networks, and what their complaints mean."""

import subprocess
from collections.abc import Sequence

from penstock.errors import PenstockError


def run(command: Sequence[str]) -> str:
    """Run `tc` or `ip`; what it prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise PenstockError(
            f"{command[0]} cannot be run ({error.strerror}): install iproute2.", code="not-installed"
        ) from None
    if done.returncode == 0:
        return done.stdout
    said = " ".join((done.stderr or done.stdout).split()).rstrip(".")
    if "Operation not permitted" in said:
        raise PenstockError(f"`{' '.join(command)}` is not permitted: run penstock net as root.", code="not-permitted")
    if "Cannot find device" in said or said.startswith("Device "):
        raise PenstockError(f"There is no such network interface ({said}): `ip link` lists them.", code="unknown-name")
    raise PenstockError(f"`{' '.join(command)}` failed: {said}.", code="external-failure")
