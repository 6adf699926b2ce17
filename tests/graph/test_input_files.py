"""Only regular files are read, and documents only up to a size: a pipe, a device or a huge file is one sentence."""

import os
import signal
import socket
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from penstock import PenstockError
from penstock.cluster.cluster_file import read_cluster
from penstock.cluster.launch.job_processes import SECRET_FILE, read_secret
from penstock.cluster.run import cluster_of
from penstock.cost.profile import read_profile
from penstock.graph import files
from penstock.graph.addresses import find_files
from penstock.graph.arrays import open_array, read_header
from penstock.graph.convert import triple_files
from penstock.graph.convert.npz import Archive
from penstock.graph.convert.ogb import load_saved, read_numbers
from penstock.graph.documents import read_yaml
from penstock.graph.files import MOST_BYTES, open_regular, read_document
from penstock.graph.folder import Graph
from penstock.graph.new_folders import check_target
from penstock.partition import open_partition
from penstock.plan.document import read_plan
from penstock.report import write_report
from penstock.report.comparison import read_subject
from penstock.simulate.shop.shop import read_fjs
from penstock.simulate.traces.trace import read_trace
from penstock.store.parts.embedding_files import read_records
from penstock.train.run_files.checkpoints import read_state
from penstock.train.run_files.run_folder import RunFolder
from refusals import refused
from training_graphs import community_graph


@pytest.fixture(autouse=True)
def no_waiting():
    """What waits for a pipe's writer is ended, and fails."""
    signal.setitimer(signal.ITIMER_REAL, 60.0)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)


def make_pipe(path):
    os.mkfifo(path)


def make_device(path):
    path.symlink_to("/dev/zero")


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def make_folder(path):
    path.mkdir()


READERS = {
    "job.yaml": lambda path: read_yaml(path, "a job"),
    "cluster.yaml": lambda path: read_cluster(str(path)),
    "plan.json": read_plan,
    "profile.json": read_profile,
    "graph.json": lambda path: Graph.open(path.parent),
    "partition.json": lambda path: open_partition(path.parent),
    "run.json": lambda path: RunFolder.open(path.parent),
    "cluster.json": lambda path: cluster_of(path.parent),
    "result.json": read_subject,
    "secret": lambda path: read_secret({SECRET_FILE: str(path)}),
    "array.npy": open_array,
    "state.ckpt": read_state,
    "archive.npz": Archive,
    "split.pt": load_saved,
    "num.csv.gz": read_numbers,
    "train.tsv": triple_files._read,
    "table.parquet": lambda path: find_files([path.name], path.parent, "nodes 'user'"),
    "shop.fjs": read_fjs,
    "trace.txt": read_trace,
}


@pytest.mark.parametrize("make", [make_pipe, make_device, make_socket, make_folder])
@pytest.mark.parametrize("name", READERS)
def test_what_is_not_a_regular_file_is_one_sentence(name, make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(Path(name))
    with pytest.raises(PenstockError) as caught:
        READERS[name](tmp_path / name)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_pages_and_targets_beside_a_pipe(tmp_path):
    """What looks into a folder that may be anybody's does not wait there."""
    for name in ("run.json", "graph.json"):
        make_pipe(tmp_path / name)
    with refused("damaged-file run.json pipe"):
        write_report(tmp_path)
    with refused("file-exists"):
        check_target(tmp_path, True)
    with pytest.raises(OSError, match="named pipe"):
        read_records(tmp_path / "run.json")


def test_the_arrays_of_a_graph(tmp_path):
    community_graph(40).save(tmp_path / "graph")
    for file in sorted((tmp_path / "graph").rglob("*.npy")):
        kept = file.rename(tmp_path / "kept")
        make_pipe(file)
        with refused(f"damaged-file {file.name} pipe"):
            open_array(file)
        file.unlink()
        kept.rename(file)


def test_documents_have_a_largest_size(tmp_path, monkeypatch):
    """A file with a hole takes no room on the disk, and as much memory as it says."""
    with (tmp_path / "plan.json").open("wb") as file:
        file.truncate(MOST_BYTES * 64)
    read = []
    monkeypatch.setattr(files, "open_regular", lambda path: Counted(open_regular(path), read))
    with refused("damaged-file plan.json 256 MiB"):
        read_plan(tmp_path / "plan.json")
    with refused("damaged-file plan.json 256 MiB"):
        read_yaml(tmp_path / "plan.json", "a job")
    assert max(read) <= MOST_BYTES + 1
    (tmp_path / "small.json").write_text("{ü}")
    assert read_document(tmp_path / "small.json") == "{ü}"


class Counted:
    """An open file that remembers how much of it was asked for."""

    def __init__(self, file, read):
        self._file, self._read = file, read

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def read(self, size):
        self._read.append(size)
        return self._file.read(size)


def test_links_to_regular_files_are_followed(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    (tmp_path / "b.npy").symlink_to("a.npy")
    assert open_array(tmp_path / "b.npy").tolist() == [0, 1, 2]


def from_archive(path):
    """The array of the archive beside a file."""
    with closing(Archive(path.with_suffix(".npz"))) as archive:
        return archive["a"]


@pytest.mark.parametrize("seed", range(3))
def test_damaged_headers_of_arrays_and_archives_are_sentences(seed, tmp_path):
    """Every byte of a header, changed in several ways; arrays of graph folders and archives alike."""
    np.save(tmp_path / "a.npy", np.arange(6.0).reshape(2, 3))
    data = (tmp_path / "a.npy").read_bytes()
    draws = np.random.default_rng(seed)
    for place in range(128):
        changed = bytearray(data)
        changed[place] = draws.integers(256)
        (tmp_path / "b.npy").write_bytes(changed)
        with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
            archive.writestr("a.npy", bytes(changed))
        for read in (open_array, from_archive):
            try:
                found = read(tmp_path / "b.npy")
            except PenstockError as error:
                assert error.code in ("damaged-file", "wrong-type") and "\n" not in str(error)
            else:
                assert found.nbytes == 48


def test_headers_of_other_writers(tmp_path):
    """Versions 2 and 3, other spaces, and numbers as Python 2 wrote them."""
    for version, text in [(1, "{'shape': (2L, 3L), 'descr':'<f4','fortran_order': True}"), (2, None), (3, None)]:
        text = text or "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n"
        length = len(text).to_bytes(2 if version == 1 else 4, "little")
        (tmp_path / "a.npy").write_bytes(b"\x93NUMPY" + bytes([version, 0]) + length + text.encode())
        with (tmp_path / "a.npy").open("rb") as file:
            assert read_header(file) == ((2, 3), True, np.dtype("<f4"))
