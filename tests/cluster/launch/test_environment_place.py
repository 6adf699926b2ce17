"""Where a process is in its job, and the keys made of its secret."""

import pytest
from setups import cluster_of

from penstock.cluster.cluster_file import read_cluster
from penstock.cluster.launch import take_part
from penstock.cluster.launch.job_processes import (
    LAUNCHER,
    derived_credentials,
    machines_of_job,
    read_place,
    read_secret,
)
from penstock.hardware.cluster import Machine
from penstock.wire.transport.tls import Credentials
from refusals import refused

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "first",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NODEID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURM_JOB_NODELIST": "gpu[07-08],big3",
    "SLURM_JOB_ID": "4711",
}


def test_torchruns_variables():
    place = read_place(TORCHRUN)
    assert (place.node, place.local, place.workers, place.first) == (1, 1, (2, 2), False)
    assert (place.master, place.port, place.job, place.met) == ("first", 29500, "job.29500", True)


def test_ranks_alone_are_a_process_a_node():
    plain = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234"}
    place = read_place(plain)
    assert (place.node, place.workers, place.first, place.met) == (0, (1, 1, 1), True, False)
    assert place.address() == "127.0.0.1"


def test_slurms_variables():
    place = read_place(SLURM)
    assert (place.node, place.local, place.workers, place.master) == (2, 0, (2, 2, 1), "gpu07")
    assert read_place({**SLURM, "SLURM_STEP_ID": "1"}).port != place.port
    assert read_place({**SLURM, "MASTER_ADDR": "there", "MASTER_PORT": "77"}).master == "there"
    assert [machine.workers for machine in machines_of_job(place)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("hosts", "first"), [("a", "a"), ("a,b", "a"), ("n[1-3]", "n1"), ("n[001,5]-ib,m", "n001-ib"), ("x-1,y", "x-1")]
)
def test_the_first_host_of_a_list(hosts, first):
    assert read_place({**SLURM, "SLURM_JOB_NODELIST": hosts}).master == first


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({}, "option-missing torchrun srun"),
        ({**TORCHRUN, "RANK": "x"}, "invalid-value RANK 'x'"),
        ({**TORCHRUN, "RANK": "4"}, "invalid-value RANK WORLD_SIZE"),
        ({**TORCHRUN, "WORLD_SIZE": "5"}, "invalid-value RANK WORLD_SIZE"),
        ({**TORCHRUN, "MASTER_ADDR": ""}, "option-missing MASTER_ADDR"),
        ({**SLURM, "SLURM_NODEID": "3"}, "invalid-value SLURM_NODEID"),
        ({**SLURM, "SLURM_JOB_NODELIST": ""}, "option-missing SLURM_JOB_NODELIST"),
    ],
)
def test_what_does_not_fit_is_refused(variables, sentence):
    with refused(sentence):
        read_place(variables)


def test_machines_must_be_as_many_as_nodes(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with refused("mismatched-inputs 2 1 machines"):
        take_part(cluster_of(Machine(name="m"), launcher="environment"))
    found = read_cluster("environment")
    assert [(machine.name, machine.workers) for machine in found.machines] == [("node0", 2), ("node1", 2)]
    # The second process of a node has nothing to do.
    assert not take_part(found)


def test_other_launchers_have_no_parts_to_take():
    assert take_part(cluster_of(Machine(name="m")))


def test_secrets(tmp_path):
    private, open_to_all = tmp_path / "private", tmp_path / "open"
    for path, mode in ((private, 0o600), (open_to_all, 0o644)):
        path.write_text("AB" * 32 + "\n")
        path.chmod(mode)
    assert read_secret({"PENSTOCK_SECRET": "ab" * 32}) == "ab" * 32
    assert read_secret({"PENSTOCK_SECRET_FILE": str(private)}) == "ab" * 32
    for variables, sentence in (
        ({}, "option-missing openssl"),
        ({"PENSTOCK_SECRET": "short"}, "value-out-of-range 64 openssl"),
        (
            {"PENSTOCK_SECRET": "a phrase that somebody could think of, however long it may be, it is"},
            "value-out-of-range",
        ),
        ({"PENSTOCK_SECRET_FILE": str(open_to_all)}, f"invalid-value chmod 600 {open_to_all}"),
        ({"PENSTOCK_SECRET_FILE": "/nowhere"}, "damaged-file /nowhere"),
    ):
        with refused(sentence):
            read_secret(variables)


def test_keys_are_the_same_for_all_processes_of_a_job_and_for_no_other():
    here, there = (derived_credentials(name, 2, "5" * 64, "job") for name in (LAUNCHER, "agent-1"))
    assert here.peers == there.peers
    assert here.secret != there.secret
    assert Credentials.from_json(here.to_json()) == here
    others = (derived_credentials(LAUNCHER, 2, "7" * 64, "job"), derived_credentials(LAUNCHER, 2, "5" * 64, "other"))
    assert not any(set(here.peers.values()) & set(other.peers.values()) for other in others)
