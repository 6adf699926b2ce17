"""Kernels where neither the home folder nor the install folder can be written: containers, service accounts."""

import compileall
import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from random_graphs import mesh_graph

_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE = 24, 1
_LIBC = ctypes.CDLL(None)

KERNEL = """
import sys
{before}
import penstock
import numpy as np
from penstock.graph.csr import (_count)
indptr = np.zeros(3, np.int64)
_count(np.array([1, 1], np.int32), indptr)
assert indptr.tolist() == [0, 0, 2], indptr
from penstock.cache_folders import kernel_folder
print(kernel_folder() or "none")
"""


def bound_by_permissions():
    """Take from root what lets it write everywhere, before the program under test starts."""
    if os.geteuid() == 0:
        _LIBC.prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0)


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    """A folder with a copy of the sources and a home that nothing can be written to."""
    if not sys.platform.startswith("linux"):
        pytest.skip("Capabilities and their bounding set are Linux's.")
    place = tmp_path_factory.mktemp("locked")
    source = Path(penstock.__file__).parent
    shutil.copytree(source, place / "install" / "penstock")
    # Else each of the programs would make the byte code of what it imports, and could not keep it.
    compileall.compile_dir(place / "install" / "penstock", quiet=2)
    (place / "home").mkdir()
    for folder in [place / "home", *(each for each in (place / "install").rglob("*") if each.is_dir())]:
        folder.chmod(0o555)
    yield place
    for folder in [place / "home", *(each for each in (place / "install").rglob("*") if each.is_dir())]:
        folder.chmod(0o755)


def run(locked, temporary, *arguments, **variables):
    """A Python program on the copy, which must succeed; its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA", "XDG", "TRITON"))}
    paths = os.pathsep.join([str(locked / "install"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment |= {"PYTHONPATH": paths, "HOME": str(locked / "home"), "TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment | variables,
        preexec_fn=bound_by_permissions,
        cwd=temporary,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_copy_cannot_be_written(locked, tmp_path):
    """Else the other tests would show nothing."""
    for place in (locked / "install" / "penstock", locked / "install" / "penstock" / "graph", locked / "home"):
        said = f"import os; print(os.access({str(place)!r}, os.W_OK, effective_ids=True))"
        assert run(locked, tmp_path, "-c", said) == "False"


@pytest.mark.parametrize("before", ["", "import numba"], ids=["numba-later", "numba-first"])
def test_a_private_folder_is_chosen(locked, tmp_path, before):
    """Kernels are kept under the temporary folder, for this user alone, whoever imports Numba first."""
    chosen = tmp_path / f"penstock-{os.geteuid()}"
    assert run(locked, tmp_path, "-c", KERNEL.format(before=before)) == str(chosen / "kernels")
    assert list((chosen / "kernels").rglob("*.nbc"))
    assert {chosen.stat().st_mode & 0o777, (chosen / "kernels").stat().st_mode & 0o777} == {0o700}


def test_triton_gets_a_folder_too(locked, tmp_path):
    """Triton knows the home folder only."""
    said = "import os, penstock; print(os.environ['TRITON_CACHE_DIR'])"
    assert run(locked, tmp_path, "-c", said) == str(tmp_path / f"penstock-{os.geteuid()}" / "triton")


@pytest.mark.parametrize("trap", ["link", *(pytest.param(each, marks=pytest.mark.long) for each in ("file", "open"))])
def test_a_folder_that_another_may_have_prepared_is_not_used(locked, tmp_path, trap):
    """Numba unpickles its cache: rather none than one that others can write to."""
    chosen, elsewhere = tmp_path / f"penstock-{os.geteuid()}", tmp_path / "elsewhere"
    elsewhere.mkdir()
    if trap == "link":
        chosen.symlink_to(elsewhere)
    elif trap == "file":
        chosen.write_text("")
    else:
        chosen.mkdir()
        chosen.chmod(0o777)
    assert run(locked, tmp_path, "-c", KERNEL.format(before="")) == "none"
    assert not list(tmp_path.rglob("*.nbc"))


def test_a_folder_of_the_users_is_kept(locked, tmp_path):
    """NUMBA_CACHE_DIR is heard where it can be written, and replaced where it cannot."""
    own = tmp_path / "mine"
    assert run(locked, tmp_path, "-c", KERNEL.format(before=""), NUMBA_CACHE_DIR=str(own)) == str(own)
    locked_folder = str(locked / "home" / "cache")
    chosen = str(tmp_path / f"penstock-{os.geteuid()}" / "kernels")
    assert run(locked, tmp_path, "-c", KERNEL.format(before=""), NUMBA_CACHE_DIR=locked_folder) == chosen


def test_a_writable_home_holds_the_kernels(locked, tmp_path):
    """In the user's cache folder, not beside the sources."""
    home = tmp_path / "home"
    home.mkdir()
    chosen = home / ".cache" / "penstock" / "kernels"
    assert run(locked, tmp_path, "-c", KERNEL.format(before=""), HOME=str(home)) == str(chosen)
    assert list(chosen.rglob("*.nbc"))


def test_commands_and_tasks_start(locked, tmp_path):
    """A command with kernels, and what a cluster starts on every machine."""
    command = "import sys; from penstock.cli import main; sys.argv[1:] = {}; main()"
    mesh_graph().save(tmp_path / "graph")
    cut = command.format(["partition", "graph", "--parts", "2", "--method", "random", "--out", "cut", "--json"])
    assert '"method": "random"' in run(locked, tmp_path, "-c", cut)
    assert list((tmp_path / f"penstock-{os.geteuid()}" / "kernels").rglob("*.nbc"))
    assert run(locked, tmp_path, "-c", "import penstock.cluster.tasks.__main__; print('imported')") == "imported"


def test_a_data_set_says_where_it_could_be_kept(locked, tmp_path):
    """The cache of data sets is too large for a temporary folder: the sentence names the variable."""
    said = """
import penstock
try:
    penstock.load("synthetic-arxiv")
except penstock.PenstockError as error:
    print(error)
"""
    assert "set PENSTOCK_CACHE" in run(locked, tmp_path, "-c", said)
