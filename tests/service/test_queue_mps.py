"""Starting CUDA MPS, with a program in the place of NVIDIA's that answers as it does."""

import pytest

from penstock.service.workers.cuda_mps import started_mps
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


def test_the_daemon_is_started_once_used_again_and_ended(control, folder):
    daemon = started_mps(folder, "auto")
    assert daemon.environment["CUDA_MPS_PIPE_DIRECTORY"] == str(folder)
    assert started_mps(folder, "mps") is not None
    assert (folder / "control").read_text() == "started\n"
    daemon.close()
    assert (folder / "orders").read_text().splitlines()[-1] == "quit -t 5"


def test_a_daemon_that_does_not_start_is_a_sentence(control, folder):
    folder.mkdir()
    (folder / "refuses").touch()
    with refused("external-failure time-slices daemon"):
        started_mps(folder, "auto")


def test_jobs_take_turns_where_there_is_no_daemon_or_none_is_wanted(folder, control, monkeypatch, tmp_path):
    assert started_mps(folder, "time-slices") is None
    assert started_mps(tmp_path / ("long" * 20), "auto") is None
    with refused("unknown-name both"):
        started_mps(folder, "both")
    monkeypatch.setenv("PATH", "/nowhere")
    assert started_mps(folder, "auto") is None
    with refused("not-installed nvidia-cuda-mps-control"):
        started_mps(folder, "mps")
