"""Ways of sharing a device: starting CUDA MPS, with a program in the place of NVIDIA's that answers as it does."""

from contextlib import ExitStack

import pytest

from penstock.service import SHARING
from penstock.service.admission import JobDevice
from penstock.service.policies import DeviceRoom
from penstock.service.service import shared_devices
from penstock.service.sharing import started_mps
from refusals import refused

CONTROL = """#!/bin/sh
if [ "$1" = "-d" ]; then
  [ -e "$CUDA_MPS_PIPE_DIRECTORY/refuses" ] && echo "Cannot find MPS control daemon process" && exit 1
  echo started >> "$CUDA_MPS_PIPE_DIRECTORY/control"
  exit 0
fi
read order
echo "$order" >> "$CUDA_MPS_PIPE_DIRECTORY/orders"
[ -e "$CUDA_MPS_PIPE_DIRECTORY/control" ]
"""


@pytest.fixture
def control(tmp_path, monkeypatch):
    """A folder for programs, which holds the daemon's."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nvidia-cuda-mps-control").write_text(CONTROL)
    (programs / "nvidia-cuda-mps-control").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")


@pytest.fixture
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("q") / "mps"


GPU = JobDevice(
    DeviceRoom(name="cuda:0", kind="cuda", bytes=1 << 34, host_bytes=1 << 30, cores=2.0), {"A": "b"}, "a GPU"
)
HOST = JobDevice(DeviceRoom(name="cpu", kind="cpu", host_bytes=1 << 30, cores=2.0), {}, "processor")


def chosen(name, folder, rooms=(GPU, HOST)):
    """How devices are shared, and what is ended afterwards."""
    with ExitStack() as stack:
        return shared_devices(name, stack, folder, list(rooms), "the pool")


def test_the_daemon_is_started_once_used_again_and_ended(control, folder):
    daemon = started_mps(folder)
    assert daemon.environment["CUDA_MPS_PIPE_DIRECTORY"] == str(folder)
    assert started_mps(folder) is not None
    assert (folder / "control").read_text() == "started\n"
    daemon.close()
    assert (folder / "orders").read_text().splitlines()[-1] == "quit -t 5"


def test_a_daemon_that_does_not_start_is_a_sentence(control, folder):
    folder.mkdir()
    (folder / "refuses").touch()
    with refused("external-failure time-slices daemon"):
        chosen("auto", folder.parent)


def test_processes_are_told_of_the_daemon_which_ends_with_the_service(control, folder):
    found = chosen("auto", folder.parent)
    assert found.trainers == "the pool"
    assert found.rooms[0].environment == {
        "A": "b",
        "CUDA_MPS_PIPE_DIRECTORY": str(folder),
        "CUDA_MPS_LOG_DIRECTORY": str(folder),
    }
    assert (folder / "orders").read_text().splitlines()[-1] == "quit -t 5"


def test_jobs_take_turns_where_there_is_no_daemon_or_none_is_wanted(folder, control, monkeypatch, tmp_path):
    assert chosen("time-slices", folder.parent).rooms == [GPU, HOST]
    assert chosen("auto", tmp_path / ("long" * 20)).rooms == [GPU, HOST]
    assert chosen("auto", folder.parent, [HOST]).rooms == [HOST]
    assert not folder.exists()
    with refused("unknown-name both"):
        chosen("both", folder.parent)
    with refused("not-installed no GPU time-slices"):
        chosen("mps", folder.parent, [HOST])
    monkeypatch.setenv("PATH", "/nowhere")
    assert chosen("auto", folder.parent).rooms == [GPU, HOST]
    with refused("not-installed nvidia-cuda-mps-control"):
        chosen("mps", folder.parent)


def test_the_help_names_every_way():
    from penstock.cli.queue import serve_command

    (option,) = serve_command.__annotations__["sharing"].__metadata__
    assert all(name in option.help for name in (*SHARING, "auto"))
