"""The documented line for torchrun: understood by torchrun's own parser, and carried out."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cluster_runs import JOB
from training_graphs import PENSTOCK, community_graph, facts_of

PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"


def documented():
    """The words of every line of the page that calls torchrun."""
    lines = re.findall(r"^torchrun (.*)$", PAGE.read_text().replace("\\\n", " "), re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("words", documented(), ids=" ".join)
def test_the_page_is_understood(words):
    """Without the two dashes torchrun takes --run for short for one of its own flags."""
    from torch.distributed.run import get_args_parser

    start = words.index("penstock")
    assert "--run" in words[start:]
    found = get_args_parser().parse_args(words)
    assert found.no_python and [found.training_script, *found.training_script_args] == words[start:]


def test_there_is_such_a_line():
    assert documented()


@pytest.mark.long
@pytest.mark.parametrize("processes", ["1", "2"])
def test_it_trains(tmp_path, processes):
    community_graph(80).save(tmp_path / "graph")
    job = {**JOB, "graph": tmp_path / "graph", "epochs": 1}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in job.items() if name != "fanouts"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes]
    train = ["train", *flags, "--fanouts", "4,3", "--cluster", "environment", "--run", str(tmp_path / "run")]
    done = subprocess.run(
        [*torchrun, "--no-python", "--", *PENSTOCK, *train],
        env={**os.environ, "PENSTOCK_SECRET": "5e" * 32},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert facts_of(tmp_path / "run")["state"] == "finished"
