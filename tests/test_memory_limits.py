"""Free memory is what control groups leave of it; what a process keeps is used again by all its threads."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock import memory


def group(folder, limit, used, cached=0, names=("memory.max", "memory.current")):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n")


@pytest.fixture
def root(tmp_path, monkeypatch):
    (tmp_path / "proc/self").mkdir(parents=True)
    known = memory.control_groups
    monkeypatch.setattr(memory, "control_groups", lambda: known(tmp_path))
    return tmp_path


def test_the_narrowest_group_counts(root):
    (root / "proc/self/cgroup").write_text("0::/jobs/one\n")
    group(root / "sys/fs/cgroup/jobs", 300 << 20, 250 << 20)
    group(root / "sys/fs/cgroup/jobs/one", 100 << 20, 40 << 20, cached=10 << 20)
    assert memory.available_mb() == 50
    group(root / "sys/fs/cgroup/jobs/one", 100 << 20, 10 << 20)
    assert memory.available_mb() == 50
    group(root / "sys/fs/cgroup/jobs/one", "max", 10 << 20)
    assert memory.available_mb() == 50


def test_the_older_groups(root):
    (root / "proc/self/cgroup").write_text("4:cpu,memory:/job\n2:pids:/other\n")
    group(
        root / "sys/fs/cgroup/memory/job", 64 << 20, 60 << 20, names=("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    assert memory.available_mb() == 4


def test_without_groups_it_is_the_systems(root):
    assert memory.available_mb() > 100
    (root / "proc/self/cgroup").write_text("0::/nowhere\n")
    assert memory.available_mb() > 100 and Path("/proc").exists()


ONE_HEAP = """
import ctypes, sys, threading
from penstock.memory import freed_memory_kept, resident_mb, use_one_heap

MB = 1 << 20
if not hasattr(ctypes.CDLL(None), "mallopt"):
    sys.exit("no glibc")
if sys.argv[1] == "one":
    use_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def used():
    place = libc.malloc(48 * MB)
    ctypes.memset(place, 1, 48 * MB)
    libc.free(place)

with freed_memory_kept():
    before = resident_mb()
    used()
    thread = threading.Thread(target=used)
    thread.start()
    thread.join()
    print(resident_mb() - before)
"""


def test_threads_use_what_others_have_freed_where_there_is_one_heap():
    """Two threads use 48 MiB, one after the other."""
    grown = {}
    for heaps in ("one", "many"):
        done = subprocess.run([sys.executable, "-c", ONE_HEAP, heaps], capture_output=True, text=True, check=False)
        if "no glibc" in done.stderr:
            pytest.skip("only glibc has several heaps")
        grown[heaps] = float(done.stdout)
    assert grown["one"] < 60 and grown["many"] > 90, grown
