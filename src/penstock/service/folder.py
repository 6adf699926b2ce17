"""The folder of a service: its database, its token, its address and what its jobs write."""

import fcntl
import grp
import json
import os
import pwd
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.graph.files import make_private_folder, open_lock, open_private, read_document, write_whole, writing

FORMAT, VERSION = "penstock-queue", 1
_TOKEN_BYTES = 32
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ROOT, _NOBODY = 0, 65534
"""Owners of folders above a service's that are trusted: root, and the uid of unmapped users."""


class Address(NamedTuple):
    """The address at which a service listens."""

    host: str
    port: int


def default_folder() -> Path:
    """The folder of PENSTOCK_QUEUE, or the user's own."""
    named = os.environ.get("PENSTOCK_QUEUE")
    if named:
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "penstock" / "queue"


class ServiceFolder:
    """The files of one service. Only its owner may write into the folder, or replace it."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self.database = self.path / "queue.sqlite"
        self._token = self.path / "token"
        self._address = self.path / "service.json"
        self._lock = self.path / ".lock"
        self._held: int | None = None

    def hold(self) -> None:
        """Make the folder if needed, and lock it against other services until `close`."""
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            make_private_folder(self.path)
            self._require_own()
            make_private_folder(self.path / "jobs")
        try:
            self._held = open_lock(self._lock)
        except BlockingIOError:
            raise PenstockError(
                f"A service already runs on {self.path}: use that one, stop it, or name another folder with --folder.",
                code="in-use",
            ) from None
        # A killed service leaves a file with an address at which another process may listen by now.
        self._address.unlink(missing_ok=True)

    @property
    def is_held(self) -> bool:
        """Whether this process holds the folder."""
        return self._held is not None

    def close(self) -> None:
        """Release the folder for other services."""
        if self._held is not None:
            self._address.unlink(missing_ok=True)
            os.close(self._held)
            self._held = None

    def publish(self, address: Address) -> None:
        """Publish the service's address for clients."""
        fields = {"format": FORMAT, "version": VERSION, "host": address.host, "port": address.port}
        write_whole(self._address, json.dumps(fields) + "\n")

    def address(self) -> Address:
        """Where the service of this folder listens; an error if none runs.

        A client checks the lock, not only the file: after a crash another process may listen at the address that the
        file still names, and must not be sent the token.
        """
        self._require_own()
        if not self._is_served():
            raise PenstockError(
                f"No service runs on {self.path}: start one with `penstock serve`, or name its folder with --folder or"
                " PENSTOCK_QUEUE.",
                code="not-available",
            )
        try:
            found = json.loads(read_document(self._address))
            return Address(str(found["host"]), int(found["port"]))
        except FileNotFoundError:
            raise PenstockError(
                f"The service on {self.path} is only just starting: try again in a moment.", code="not-available"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PenstockError(
                f"{self._address} cannot be read ({error}): start the service again.", code="damaged-file"
            ) from None

    def token(self) -> str:
        """The secret by which clients authenticate. Only the folder's owner can read it."""
        self._require_own()
        try:
            return read_document(self._token).strip()
        except (OSError, ValueError) as error:
            raise PenstockError(
                f"The token {self._token} cannot be read ({error}): only the owner of the service can.",
                code="not-permitted",
            ) from None

    def make_token(self) -> str:
        """The token, made if there is none. One that others could have read is replaced."""
        with suppress(FileNotFoundError):
            if self._token.lstat().st_mode & _OTHERS or not read_document(self._token).strip():
                self._token.unlink()
        with writing(self._token), suppress(FileExistsError):
            descriptor = open_private(self._token, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
        return self.token()

    def job(self, number: int) -> Path:
        """The folder of a job; its run is in it unless the job names another."""
        return self.path / "jobs" / str(number)

    def log(self, number: int) -> Path:
        """What a job's processes have printed."""
        return self.job(number) / "log.txt"

    def _require_own(self) -> None:
        """Refuse a folder in which, or above which, other users can write.

        Such a user could publish an address of their own, to which clients would send the token, or a database of their
        own, whose jobs would be run.
        """
        for place in (self.path, *self.path.parents):
            try:
                found = place.stat()
            except FileNotFoundError:
                continue
            own = place == self.path
            if found.st_uid != os.geteuid() and (own or found.st_uid not in (_ROOT, _NOBODY)):
                raise PenstockError(
                    f"{place} belongs to {_name_of(found.st_uid)}, and only a queue in a folder of your own can be"
                    " trusted: name another with --folder or PENSTOCK_QUEUE.",
                    code="not-permitted",
                )
            # In a world-writable folder such as /tmp, the sticky bit protects each user's entries from the others.
            if _others_write(found) and (own or not found.st_mode & stat.S_ISVTX):
                raise PenstockError(
                    f"Others can write to {place}, and so could answer in the place of the service: take that right"
                    f" from them (chmod go-w {place}), or name another folder with --folder or PENSTOCK_QUEUE.",
                    code="not-permitted",
                )

    def _is_served(self) -> bool:
        try:
            descriptor = os.open(self._lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False


def _others_write(found: os.stat_result) -> bool:
    """Whether users other than the owner may write to a folder. A group with only this user counts as none."""
    if not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    if found.st_mode & stat.S_IWOTH:
        return True
    try:
        group, user = grp.getgrgid(found.st_gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return True
    return group.gr_name != user.pw_name or found.st_gid != user.pw_gid or bool(set(group.gr_mem) - {user.pw_name})


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
