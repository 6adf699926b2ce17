"""From the `files` of a spec to the files there are, and the format of each."""

from pathlib import Path

from penstock.errors import PenstockError
from penstock.graph.tables.spec import Format

COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
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


def find_files(patterns: list[str], folder: Path, what: str) -> list[Path]:
    """The files of a table, in the order of the list; those of a glob in the order of their names."""
    found: list[Path] = []
    for pattern in patterns:
        try:
            matches = _matches(folder, pattern)
        except (ValueError, RuntimeError) as error:
            raise PenstockError(
                f"{pattern!r} of {what} is not a path or pattern ({error}): correct the spec.", code="invalid-value"
            ) from None
        if not matches:
            raise PenstockError(
                f"No file matches {pattern!r} of {what} in {folder}: check the path, relative to the spec.",
                code="file-not-found",
            )
        found += matches
    # A file that two patterns name is read once.
    found = list(dict.fromkeys(found))
    for path in found:
        if path.is_dir():
            raise PenstockError(
                f"{path} of {what} is a folder: name its files, for instance {path.name}/*.parquet.", code="wrong-file"
            )
        if not path.is_file():
            raise PenstockError(
                f"{path} of {what} is a pipe, a socket or a device, and only regular files are read: write its content"
                " to a file.",
                code="wrong-file",
            )
    return found


def format_of(paths: list[Path], asked: Format | None) -> Format:
    """The one format of a table's files: as asked for, or by their extension."""
    if asked:
        return asked
    formats = {path: _by_extension(path) for path in paths}
    if len(set(formats.values())) > 1:
        other = next(path for path in paths if formats[path] != formats[paths[0]])
        raise PenstockError(
            f"{paths[0]} and {other} have different formats: convert one, or give them as one format.",
            code="wrong-file",
        )
    return formats[paths[0]]


def _matches(folder: Path, pattern: str) -> list[Path]:
    path = folder / Path(pattern).expanduser()
    if path.exists():
        return [path]
    if Path(pattern).is_absolute():
        folder, pattern = Path(path.anchor), str(path.relative_to(path.anchor))
    return sorted(match for match in folder.glob(pattern) if match.is_file())


def _by_extension(path: Path) -> Format:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    if not suffixes or suffixes[-1] not in _FORMATS:
        raise PenstockError(
            f"The format of {path} is not known by its extension: add 'format: parquet', csv, tsv or json.",
            code="option-missing",
        )
    return _FORMATS[suffixes[-1]]
