"""Free memory is what the process's control groups leave of it."""

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
