"""What a training process takes of the host before it computes: the interpreter, torch, kernels. Measured once."""

import functools
import subprocess
import sys

import torch
from pydantic import Field, ValidationError

from penstock.graph.atomic import write_whole
from penstock.graph.cache_folder import cache_folder
from penstock.graph.documents import StrictDocument
from penstock.graph.input_files import read_document
from penstock.python_program import start_python

_CUDA_ON_HOST = 900 << 20
"""Bytes of the host that CUDA's libraries and torch's kernels for a GPU take: assumed, not measured."""
_STATED = 420 << 20
_TIMEOUT = 120


class ProcessMemory(StrictDocument):
    """What was measured."""

    resident: int = Field(ge=0, description="bytes of a process that has trained two steps on a tiny graph")
    files: int = Field(ge=0, description="how many of them are pages of files: of programs and libraries")
    measured_on: str | None = Field(None, description="the torch and the Python that were measured; none: stated")


def process_bytes(on_device: bool) -> int:
    """Resident bytes of a process that trains next to nothing."""
    return _known().resident + (_CUDA_ON_HOST if on_device else 0)


def program_file_bytes() -> int:
    """How many of these are pages of programs and libraries. The system has them once for all processes."""
    return _known().files


@functools.cache
def _known() -> ProcessMemory:
    name, file = f"torch {torch.__version__}, Python {sys.version.split()[0]}", cache_folder() / "process.json"
    try:
        found = ProcessMemory.model_validate_json(read_document(file))
        if found.measured_on == name:
            return found
    except (OSError, ValueError, ValidationError):
        pass
    try:
        # The first one may have to compile kernels.
        resident, files = min(_measured(), _measured())
    except (OSError, ValueError, subprocess.SubprocessError):
        return ProcessMemory(resident=_STATED, files=0, measured_on=None)
    found = ProcessMemory(resident=resident, files=files, measured_on=name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, found.model_dump_json(indent=2))
    except OSError:
        # It is measured again by the next process.
        return found
    return found


def _measured() -> tuple[int, int]:
    """The peak of a child process that trains a tiny graph, and what of it are pages of files."""
    child = start_python(
        ["-m", "penstock.train.tiny_run"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with child:
        try:
            said, _ = child.communicate(timeout=_TIMEOUT)
        finally:
            child.kill()
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, child.args)
    resident, files = map(int, said.split()[-2:])
    return resident, files
