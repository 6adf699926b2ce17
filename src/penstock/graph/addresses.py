"""From the `files` of a spec to the files of a table: paths, folders and globs, here or on an object store."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from penstock.errors import PenstockError, nearest

Format = Literal["parquet", "csv", "tsv", "json"]
"""What a table's files are written in."""

# Schemes of addresses. Each is a file system of pyarrow, which reads its options from the query of an address and from
# the environment as its documentation says.


class Scheme(NamedTuple):
    """A kind of address: how it becomes a file system, and what to do where access is refused."""

    open: Callable[[str, str, str], fs.FileSystem]
    """From scheme, host and query."""
    path: Callable[[str, str], str]
    """From host and path: the path on the file system."""
    rights: str


def _from_uri(scheme: str, host: str, query: str) -> fs.FileSystem:
    return fs.FileSystem.from_uri(f"{scheme}://{host}/" + (f"?{query}" if query else ""))[0]


def _from_patient_uri(scheme: str, host: str, query: str) -> fs.FileSystem:
    # By default Google's client tries for a quarter of an hour.
    limited = query if "retry_limit_seconds=" in query else f"{query}&retry_limit_seconds=60".lstrip("&")
    return _from_uri(scheme, host, limited)


def _in_bucket(host: str, path: str) -> str:
    return host.rpartition("@")[2] + path


_S3_RIGHTS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or let the account use the bucket"
_GS_RIGHTS = "set GOOGLE_APPLICATION_CREDENTIALS, or let the account use the bucket"
_HDFS_RIGHTS = "let the user read the files, and set HADOOP_USER_NAME where it is another"
SCHEMES: dict[str, Scheme] = {
    "s3": Scheme(_from_uri, _in_bucket, _S3_RIGHTS),
    "gs": Scheme(_from_patient_uri, _in_bucket, _GS_RIGHTS),
    "hdfs": Scheme(_from_uri, lambda _, path: path, _HDFS_RIGHTS),
    "file": Scheme(lambda *_: fs.LocalFileSystem(), lambda _, path: path, "let the user read the files"),
}

_LOCAL_RIGHTS = SCHEMES["file"].rights
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_REFUSED = re.compile(
    r"ACCESS_DENIED|HTTP status 403|PERMISSION_DENIED|Permission denied|UNAUTHENTICATED|InvalidAccess"
)
_GONE = re.compile(r"NO_SUCH_BUCKET|NO_SUCH_KEY|HTTP status 404|NOT_FOUND|does not exist|No such file")
_CUT = re.compile(r"NETWORK_CONNECTION|curlCode|timed out|Timeout|UNAVAILABLE|SLOW_DOWN|INTERNAL_FAILURE|HTTP status 5")


def is_address(text: str) -> bool:
    """Whether a text names a file system of its own, as `s3://bucket/users.parquet` does."""
    return bool(_ADDRESS.match(text))


@dataclass(frozen=True)
class DataFile:
    """A file of a table: where it lies, and its name in errors, without secrets."""

    system: fs.FileSystem
    path: str
    shown: str
    rights: str = _LOCAL_RIGHTS
    size: int = 0
    modified: int = 0
    """When it was written last, in nanoseconds; 0 where its file system does not say."""

    def __str__(self) -> str:
        return self.shown

    @property
    def is_local(self) -> bool:
        """Whether it lies on a file system of this machine."""
        return isinstance(self.system, fs.LocalFileSystem)

    def open(self) -> pa.NativeFile:
        """The file, open for reading at any place."""
        return self.system.open_input_file(self.path)

    @contextmanager
    def text(self) -> Iterator[Any]:
        """The content as a stream, decompressed as the extension says. That its end was reached is checked."""
        with self.open() as file:
            codec = _codec(self.path)
            stream = pa.BufferedInputStream(file, _STREAM_BYTES)
            stream = pa.CompressedInputStream(stream, codec) if codec else stream
            yield CheckedStream(stream, file, self)

    @contextmanager
    def readable(self, form: str) -> Iterator[None]:
        """Turns errors of pyarrow, the disk or the network into one sentence that names the file."""
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self.error(error, form) from None

    def error(self, error: Exception, form: str) -> PenstockError:
        """What an error means: access refused, the file gone, the connection cut, or the file damaged."""
        problem = problem_of(error)
        if found := access_error(error, self.shown, self.rights):
            return found
        return PenstockError(
            f"{self} cannot be read as {form} ({problem}): the file is damaged or has another format.",
            code="damaged-file",
        )


class CheckedStream:
    """A stream of text; one that ends before its file does is an error, and not the end of the table."""

    def __init__(self, stream: pa.NativeFile, file: pa.NativeFile, data: DataFile) -> None:
        self.stream, self._file, self._data = stream, file, data

    def position(self) -> int:
        """The bytes of the file that have been read, compressed as they are."""
        return int(self._file.tell())

    def check(self) -> None:
        """Call it when the stream has ended."""
        if (read := self._file.tell()) < (size := self._file.size()):
            raise PenstockError(
                f"{self._data} ended after {read:,} of {size:,} bytes: the connection was cut, run the command again.",
                code="external-failure",
            )


def problem_of(error: Exception) -> str:
    """The first line of an error of pyarrow, without its end."""
    line = " ".join(str(error).split("\n")[0].split())
    return re.sub(r" \(Request ID: [^)]*\)|\. Detail: .*", "", line).rstrip(".")


def access_error(error: Exception, shown: str, rights: str, done: str = "read") -> PenstockError | None:
    """The error where access was refused, or the file or the connection is gone; None for others. `done` is what was
    tried: read or written.
    """
    text = str(error)
    if isinstance(error, PermissionError) or _REFUSED.search(text):
        return PenstockError(f"{shown} may not be {done}: {rights}.", code="not-permitted")
    if isinstance(error, FileNotFoundError) or _GONE.search(text):
        return PenstockError(
            f"{shown} does not exist, or is there no longer: check the address, then run the command again.",
            code="file-not-found",
        )
    if _CUT.search(text):
        return PenstockError(
            f"{shown} could not be {done}, for the connection failed ({problem_of(error)}): check the network and the"
            " address, then run the command again.",
            code="external-failure",
        )
    return None


# From patterns to files.

_STREAM_BYTES = 1 << 20
_GLOB = re.compile(r"[*?\[]")


def find_files(patterns: list[str], folder: Path, what: str) -> list[DataFile]:
    """The files of a table, in the order of the list; those of a glob or a folder in the order of their names."""
    found: list[DataFile] = []
    for pattern in patterns:
        find = _remote_matches if is_address(pattern) and not pattern.startswith("file://") else _local_matches
        matches = find(pattern, folder, what)
        if not matches:
            where = "" if is_address(pattern) else f" in {folder}"
            hint = "check the address" if is_address(pattern) else "check the path, relative to the spec"
            raise PenstockError(
                f"No file matches {_public(pattern)!r} of {what}{where}: {hint}.", code="file-not-found"
            )
        found += matches
    # A file that two patterns match is read once.
    return list({file.shown: file for file in found}.values())


def _public(pattern: str) -> str:
    """A pattern without what may be secret: the name and key before an `@`, and the options."""
    if not is_address(pattern):
        return pattern
    scheme, _, rest = pattern.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _local_matches(pattern: str, folder: Path, what: str) -> list[DataFile]:
    if pattern.startswith("file://"):
        pattern = unquote(urlsplit(pattern.replace("?", "%3F").replace("#", "%23")).path)
    try:
        paths = _paths(folder, pattern)
    except (ValueError, RuntimeError) as error:
        raise PenstockError(
            f"{pattern!r} of {what} is not a path or pattern ({error}): correct the spec.", code="invalid-value"
        ) from None
    for path in paths:
        if not path.is_file():
            raise PenstockError(
                f"{path} of {what} is a pipe, a socket or a device, and only regular files are read: write its content"
                " to a file.",
                code="wrong-file",
            )
    system = fs.LocalFileSystem()
    about = [(str(path), path.stat()) for path in paths]
    return [DataFile(system, path, path, size=each.st_size, modified=each.st_mtime_ns) for path, each in about]


def _paths(folder: Path, pattern: str) -> list[Path]:
    path = folder / Path(pattern).expanduser()
    if path.is_dir():
        below = (each for each in path.rglob("*") if each.is_file())
        return sorted(each for each in below if _is_table(each.relative_to(path).as_posix()))
    if path.exists():
        return [path]
    if Path(pattern).is_absolute():
        folder, pattern = Path(path.anchor), str(path.relative_to(path.anchor))
    return sorted(match for match in folder.glob(pattern) if match.is_file())


def _remote_matches(pattern: str, folder: Path, what: str) -> list[DataFile]:
    address, _, query = pattern.partition("?")
    scheme, _, rest = address.partition("://")
    if scheme.lower() not in SCHEMES:
        raise PenstockError(
            f"{_public(pattern)} of {what} has an unknown scheme{nearest(scheme.lower(), SCHEMES)}",
            code="unknown-name",
        )
    kind, (host, slash, path) = SCHEMES[scheme.lower()], rest.partition("/")
    shown = f"{scheme}://{host.rpartition('@')[2]}"
    try:
        system = opened_system(scheme.lower(), host, query)
        on_system = kind.path(host, slash + unquote(path)).rstrip("/")
        # The path of a host is no part of what is shown before it.
        before = len(kind.path(host, ""))
        infos = list(_listed(system, on_system))
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and (refused := access_error(error, _public(pattern), kind.rights)):
            raise refused from None
        raise PenstockError(
            f"{_public(pattern)} of {what} cannot be opened ({problem_of(error)}): correct the address or install"
            " what its file system needs.",
            code="external-failure",
        ) from None
    return [
        DataFile(system, info.path, shown + info.path[before:], kind.rights, info.size or 0, info.mtime_ns or 0)
        for info in infos
    ]


@cache
def opened_system(scheme: str, host: str, query: str) -> fs.FileSystem:
    """The file system of an address; a second one on the same host is the same."""
    return SCHEMES[scheme].open(scheme, host, query)


def _listed(system: fs.FileSystem, path: str) -> list[fs.FileInfo]:
    """The files that a path, a folder or a glob on a file system names, in the order of their names."""
    parts = path.split("/")
    fixed = next((place for place, part in enumerate(parts) if _GLOB.search(part)), len(parts))
    if fixed == len(parts):
        info = system.get_file_info(path)
        if info.type == fs.FileType.File:
            return [info]
        if info.type == fs.FileType.NotFound:
            return []
    base, pattern = "/".join(parts[:fixed]), parts[fixed:]
    deep = not pattern or len(pattern) > 1 or "**" in pattern
    infos = system.get_file_info(fs.FileSelector(base, recursive=deep))
    below = {info.path[len(base) :].lstrip("/"): info for info in infos if info.type == fs.FileType.File}
    matches = _pattern(pattern).fullmatch if pattern else _is_table
    return [info for name, info in sorted(below.items(), key=lambda item: item[0].split("/")) if matches(name)]


def _pattern(parts: list[str]) -> re.Pattern[str]:
    """A glob as `Path.glob` has it: `*` stays within a folder, `**` is any number of them."""
    pieces = ["(?:[^/]+/)*" if part == "**" else _within_folder(part) + "/" for part in parts[:-1]]
    last = parts[-1]
    pieces.append("(?:[^/]+/)*[^/]+" if last == "**" else _within_folder(last))
    return re.compile("".join(pieces))


def _within_folder(part: str) -> str:
    pieces = re.split(r"(\*|\[[^\]]+\])", part)
    return "".join(_glob_piece(piece) for piece in pieces)


def _glob_piece(piece: str) -> str:
    if piece == "*":
        return "[^/]*"
    if len(piece) > 2 and piece[0] == "[" and piece[-1] == "]":
        return f"[{'^' if piece[1] == '!' else ''}{re.escape(piece[1:-1].lstrip('!')).replace(chr(92) + '-', '-')}]"
    return re.escape(piece)


def _is_table(name: str) -> bool:
    """Whether a file of a folder is part of the table: by its extension, and not hidden, as `_SUCCESS` is."""
    hidden = any(part.startswith((".", "_")) for part in name.split("/"))
    return not hidden and _known_format(name) is not None


# Formats.

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_FORMATS: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
}


def format_of(files: list[DataFile], asked: Format | None) -> Format:
    """The one format of a table's files: as asked for, or by their extension."""
    if asked:
        return asked
    first = _by_extension(files[0])
    for file in files:
        if _by_extension(file) != first:
            raise PenstockError(
                f"{files[0]} and {file} have different formats: convert one, or give them as one format.",
                code="wrong-file",
            )
    return first


def _by_extension(file: DataFile) -> Format:
    found = _known_format(file.path)
    if found is None:
        raise PenstockError(
            f"The format of {file} is not known by its extension: add 'format: parquet', csv, tsv or json.",
            code="option-missing",
        )
    return found


def _known_format(name: str) -> Format | None:
    suffixes = [suffix.lower() for suffix in PurePosixPath(name).suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return _FORMATS.get(suffixes[-1]) if suffixes else None


def _codec(name: str) -> str | None:
    return COMPRESSED.get(PurePosixPath(name).suffix.lower())
