"""The folder of a service: whose it must be, and who can read what is in it."""

import fcntl
import grp
import os
import pwd
import socket
import stat
from contextlib import contextmanager

import pytest

import penstock as ps
from penstock.service.database import Database
from penstock.service.folder import Address, ServiceFolder
from refusals import refused


@pytest.fixture
def folder(tmp_path):
    """One that a service has made and left."""
    found = ServiceFolder(tmp_path / "queue")
    found.hold()
    found.make_token()
    found.close()
    return found.path


@pytest.fixture
def listening(folder):
    """Somebody who holds the folder's lock and listens at the address that is named in it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        with (folder / ".lock").open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            ServiceFolder(folder).publish(Address(*server.getsockname()))
            yield server


def assert_nobody_came(server):
    with pytest.raises(BlockingIOError):
        server.accept()


@contextmanager
def mode_of(path, mode):
    before = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(before)


def assert_refused(folder, words):
    for ask in (
        lambda: ServiceFolder(folder).hold(),
        lambda: ServiceFolder(folder).address(),
        lambda: ServiceFolder(folder).token(),
        lambda: ps.Queue(folder).jobs(),
    ):
        with refused(f"not-permitted {words}"):
            ask()


def test_a_folder_that_others_can_write_is_refused_and_gets_no_token(folder, listening):
    for mode in (0o777, 0o702, 0o1777):
        with mode_of(folder, mode):
            assert_refused(folder, f"{folder} go-w")
    assert_nobody_came(listening)


def test_a_folder_above_that_others_can_write_is_refused_unless_entries_are_kept_apart(folder, listening, tmp_path):
    with mode_of(tmp_path, 0o777):
        assert_refused(folder, f"{tmp_path} go-w")
    assert_nobody_came(listening)
    with mode_of(tmp_path, 0o1777):
        assert ServiceFolder(folder).address().port == listening.getsockname()[1]


def test_a_folder_of_somebody_else_is_refused(folder, listening, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    assert_refused(folder, f"{folder} PENSTOCK_QUEUE")
    assert_nobody_came(listening)


def test_a_group_that_has_the_user_alone_is_nobody_else(folder, monkeypatch):
    user = pwd.getpwuid(os.geteuid())
    group = grp.getgrgid(folder.stat().st_gid)

    def group_is(name, members):
        fields = grp.struct_group((name, "x", group.gr_gid, members))
        monkeypatch.setattr(grp, "getgrgid", lambda number: fields)

    person = pwd.struct_passwd((user.pw_name, "x", user.pw_uid, group.gr_gid, "", "/", "/"))
    monkeypatch.setattr(pwd, "getpwuid", lambda number: person)
    with mode_of(folder, 0o770):
        group_is(user.pw_name, [])
        ServiceFolder(folder).token()
        group_is(user.pw_name, [user.pw_name])
        ServiceFolder(folder).token()
        group_is(user.pw_name, ["somebody"])
        assert_refused(folder, "go-w")
        group_is("everybody", [])
        assert_refused(folder, "go-w")


def test_only_the_owner_reads_the_database_and_the_token(tmp_path):
    before = os.umask(0)
    try:
        place = ServiceFolder(tmp_path / "queue")
        place.hold()
        place.make_token()
        database = Database(place.database)
        database.counts()
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in place.path.iterdir()}
        database.close()
        # An earlier release left it to the umask.
        place.database.chmod(0o666)
        Database(place.database).close()
        assert stat.S_IMODE(place.database.stat().st_mode) == 0o600
        place.close()
    finally:
        os.umask(before)
    assert modes.pop("jobs") == 0o700
    assert {"queue.sqlite", "queue.sqlite-wal", "token", ".lock"} <= set(modes)
    assert set(modes.values()) == {0o600}, modes
