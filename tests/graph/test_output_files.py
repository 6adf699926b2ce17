"""What Penstock writes is never written through a symbolic link, and what the disk refuses names its file."""

import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.graph.arrays import ArrayWriter, write_array
from penstock.graph.files import (
    make_private_folder,
    open_bytes,
    open_lock,
    open_private,
    open_text,
    refuse_links,
    replace_whole,
    write_new,
    write_whole,
    writing,
)
from refusals import refused


@pytest.fixture
def victim(tmp_path):
    """A file of the user's, and a link to it."""
    path = tmp_path / "victim"
    path.write_text("precious")
    (tmp_path / "link").symlink_to(path)
    yield path
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    "opened",
    [
        lambda path: open_text(path, "a"),
        lambda path: open_bytes(path, "ab"),
        lambda path: open_bytes(path, "r+b"),
        lambda path: open_lock(path),
        lambda path: open_private(path, os.O_WRONLY),
    ],
)
def test_no_link_is_followed(opened, victim):
    with refused("write-failed"):
        opened(victim.with_name("link"))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: open_bytes(path, "xb"),
        lambda path: write_new(path, "mine"),
        lambda path: write_array(path, np.arange(3)),
        lambda path: ArrayWriter(path, np.int64),
    ],
)
def test_a_new_file_is_made_where_there_is_none(write, victim):
    for name in ("link", "victim"):
        with pytest.raises(FileExistsError):
            write(victim.with_name(name))


def test_a_whole_file_takes_the_place_of_a_link(victim):
    link = victim.with_name("link")
    write_whole(link, "mine")
    assert link.read_text() == "mine" and not link.is_symlink()


def test_a_pipe_in_the_place_of_a_file_does_not_hold_us_up(tmp_path):
    os.mkfifo(tmp_path / "log.txt")
    with pytest.raises((PenstockError, OSError)):
        open_text(tmp_path / "log.txt", "a")
    reader = os.open(tmp_path / "log.txt", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with refused("write-failed"):
            open_text(tmp_path / "log.txt", "a")
    finally:
        os.close(reader)


def test_folders_are_the_users_own(tmp_path):
    folder = make_private_folder(tmp_path / "run")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert make_private_folder(folder) == folder
    (tmp_path / "elsewhere").symlink_to(folder)
    with refused("write-failed"):
        make_private_folder(tmp_path / "elsewhere")
    with refused("write-failed"):
        refuse_links(tmp_path)


def test_data_is_readable_as_the_umask_says_and_locks_are_private(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "data", "x")
        os.close(open_lock(tmp_path / "lock"))
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"data": 0o640, "lock": 0o600}


def test_a_lock_is_one_processs(tmp_path):
    held = open_lock(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        open_lock(tmp_path / "lock")
    os.close(held)
    os.close(open_lock(tmp_path / "lock"))


def test_a_failed_write_names_its_file_and_leaves_the_old_one(tmp_path):
    write_whole(tmp_path / "document", "old")

    def full(file):
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with refused("write-failed"):
        replace_whole(tmp_path / "document", full)
    assert [path.name for path in tmp_path.iterdir()] == ["document"]
    assert (tmp_path / "document").read_text() == "old"
    other, said = tmp_path / "other", "write-failed"
    with refused(said), writing(other, "Do something."), open_bytes(other, "xb") as file:
        full(file)


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.EROFS, "may write"), (errno.EACCES, "may write"), (errno.ENAMETOOLONG, "shorter"), (errno.ENOSPC, "space")],
)
def test_what_to_do_about_a_write_depends_on_why_it_was_refused(number, advice):
    with refused(f"write-failed {advice}"), writing(Path("x")):
        raise OSError(number, "refused")
