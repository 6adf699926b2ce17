"""Tables on an object store, read over HTTP from a server of its own process that speaks S3."""

import http.client
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from pyarrow import fs
from tables_workbench import FOLLOWS, USERS, Workbench
from test_tables_bounded import _digests

from object_store import HAS_MOTO, free_port, s3_server
from penstock.errors import PenstockError
from penstock.graph import addresses
from penstock.graph.tables import bucket_files, import_tables

pytestmark = pytest.mark.skipif(not HAS_MOTO, reason="moto with flask, which speaks S3 over HTTP, is not installed")


@pytest.fixture(scope="module")
def server():
    """The port of an S3 server."""
    with s3_server() as port:
        yield port


class Fault(BaseHTTPRequestHandler):
    """Passes requests on, and spoils the answers to those that read an object whose name holds a word."""

    server: "Proxy"
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._pass("GET")

    def do_HEAD(self) -> None:
        self._pass("HEAD")

    def _pass(self, method: str) -> None:
        words = [word for word in self.server.spoiled if method == "GET" and word in self.path]
        self.server.faults.update(words)
        spoil = self.server.spoiled[words[0]] if words else ""
        if status := {"denied": 403, "gone": 404, "failing": 503}.get(spoil):
            headers, content = [], b""
        else:
            status, headers, content = self._asked(method, spoil == "cut")
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "server", "date", "transfer-encoding"):
                self.send_header(name, value)
        size = dict(headers)["Content-Length"] if method == "HEAD" else len(content)
        self.send_header("Content-Length", str(size))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if spoil == "cut" else content)
        self.close_connection = True

    def _asked(self, method: str, again: bool) -> tuple[int, list[tuple[str, str]], bytes]:
        """The server's answer; to what is asked `again` and again the first one."""
        key = (self.path, self.headers.get("Range"))
        if again and key in self.server.answers:
            return self.server.answers[key]
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream)
        upstream.request(method, self.path, headers=dict(self.headers))
        answer = upstream.getresponse()
        found = self.server.answers[key] = answer.status, answer.getheaders(), answer.read()
        upstream.close()
        return found

    def log_message(self, *_: object) -> None:
        pass


class Proxy(ThreadingHTTPServer):
    """The connection to the server, which can be spoiled."""

    daemon_threads = True
    upstream = 0

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.spoiled: dict[str, str] = {}
        """Faults, by a word in the address of the objects that get them."""
        self.faults: set[str] = set()
        """The words of faults that came to pass."""
        self.answers: dict[tuple[str, str | None], tuple[int, list[tuple[str, str]], bytes]] = {}


@pytest.fixture
def proxy(server):
    found = Proxy(("127.0.0.1", 0), Fault)
    found.upstream = server
    thread = threading.Thread(target=found.serve_forever, args=(0.02,))
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture
def store(proxy, monkeypatch, request):
    """A bucket of its own, and the query that leads to it through the proxy."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-a-test")
    direct = fs.S3FileSystem(
        endpoint_override=f"127.0.0.1:{proxy.upstream}", scheme="http", region="us-east-1", allow_bucket_creation=True
    )
    bucket = f"tables-{proxy.server_port}"
    direct.create_dir(bucket)
    return Store(direct, bucket, f"?endpoint_override=127.0.0.1:{proxy.server_port}&scheme=http&region=us-east-1")


class Store:
    """A bucket."""

    def __init__(self, system: fs.FileSystem, bucket: str, query: str) -> None:
        self.system, self.bucket, self.query = system, bucket, query

    def put(self, folder: Path, into: str = "", files: str = "*") -> None:
        """Copy a folder's files into it, or into a folder of it."""
        for path in sorted(folder.rglob(files)):
            if path.is_file():
                name = Path(self.bucket, into, path.relative_to(folder)).as_posix()
                with self.system.open_output_stream(name, None) as stream:
                    stream.write(path.read_bytes())

    def address(self, name: str) -> str:
        return f"s3://{self.bucket}/{name}{self.query}"


ROWS = 3000


def _tables(bench: Workbench, extension: str = "parquet") -> None:
    rng = np.random.default_rng(0)
    names = np.array([f"user {i}" for i in rng.permutation(300)])
    for number, some in enumerate(np.array_split(names, 3)):
        bench.table(f"t/users/part={number}/x y.{extension}", {"id": some, "v": rng.random(len(some))})
    bench.text("t/users/_SUCCESS", "")
    for number in range(2):
        ends = {"a": rng.choice(names, ROWS), "b": rng.choice(names, ROWS)}
        bench.table(f"t/follows/{number}.{extension}", ends)


def _spec(bench: Workbench, users: str, follows: str) -> Path:
    return bench.spec([{**USERS, "files": users, "features": ["v"]}], [{**FOLLOWS, "files": follows}])


WAYS = (("users", "follows/*.{0}"), ("users/*/x y.{0}", "follows/"), ("**/part=[0-2]/*.{0}", "follows/[!x].{0}"))
"""A folder, whose hidden files are left out, and globs."""


@pytest.mark.parametrize(
    ("extension", "ways"),
    [("parquet", WAYS), ("csv", WAYS[:1]), ("csv.gz", WAYS[1:2]), ("jsonl", WAYS[2:]), ("tsv.zst", WAYS[:1])],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_folders_and_globs_of_a_bucket(bench: Workbench, store: Store, extension: str, ways, monkeypatch) -> None:
    """They make the graph that the local files make, also within a bound of memory."""
    _tables(bench, extension)
    import_tables(_spec(bench, "t/users", "t/follows/*"), bench.out)
    store.put(bench.folder / "t")
    expected = _digests(bench.out)
    for names in ways:
        spec = _spec(bench, *(store.address(name.format(extension)) for name in names))
        import_tables(spec, bench.out, force=True)
        assert _digests(bench.out) == expected
    # The process of the tests holds more than a program that imports.
    monkeypatch.setattr(bucket_files, "anonymous_mb", lambda: 100.0)
    import_tables(spec, bench.out, force=True, memory_gb=1.0)
    assert _digests(bench.out) == expected


def test_addresses_of_local_files(bench: Workbench) -> None:
    _tables(bench)
    import_tables(_spec(bench, "t/users/**/*.parquet", "t/follows"), bench.out)
    expected = _digests(bench.out)
    below = (bench.folder / "t").as_uri()
    import_tables(_spec(bench, f"{below}/users/**/*.parquet", f"{below}/follows"), bench.out, force=True)
    assert _digests(bench.out) == expected


def _refused(bench: Workbench, users: str, follows: str = "t/follows") -> PenstockError:
    spec = _spec(bench, users, follows)
    before = sorted(bench.folder.rglob("*"))
    with pytest.raises(PenstockError) as caught:
        import_tables(spec, bench.out)
    assert sorted(bench.folder.rglob("*")) == before
    said = str(caught.value)
    assert "\n" not in said and said.endswith(".") and "secret" not in said and "?" not in said
    return caught.value


def test_what_is_not_there(bench: Workbench, store: Store) -> None:
    _tables(bench)
    store.put(bench.folder / "t")
    for name in ("none.parquet", "users/*.csv", "other/"):
        error = _refused_pattern(bench, store.address(name))
        assert error.code == "file-not-found" and name in str(error)
    error = _refused(bench, store.address("x").replace(store.bucket, "no-such-bucket"))
    assert error.code == "file-not-found"
    error = _refused(bench, store.address("users/*").replace(store.bucket, "no-such-bucket"))
    assert error.code == "file-not-found" and "s3://no-such-bucket/users/*" in str(error)


def _refused_pattern(bench: Workbench, address: str) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        import_tables(_spec(bench, address, "t/follows"), bench.out)
    return caught.value


def test_schemes_that_pyarrow_does_not_have(bench: Workbench) -> None:
    _tables(bench)
    error = _refused(bench, "s4://bucket/users.parquet")
    assert error.code == "unknown-name" and "use one of s3, gs, hdfs, file." in str(error)


EXTENSIONS = ("parquet", "csv", "csv.gz", "jsonl")
FAULTS = {
    "denied": ("not-permitted", "may not be read: set AWS_ACCESS_KEY_ID"),
    "gone": ("file-not-found", "is there no longer"),
    "failing": ("external-failure", "the connection"),
    "cut": ("external-failure", "connection"),
}


def test_faults_of_the_connection(tmp_path: Path, store: Store, proxy: Proxy) -> None:
    """Never a graph of a part of the rows: one sentence, and nothing left behind.

    All imports run at the same time: the client tries for six seconds before it takes most of these for errors.
    """
    tables = Workbench(tmp_path / "tables")
    for extension in EXTENSIONS:
        _tables(tables, extension)
    cases = [(fault, extension) for fault in FAULTS for extension in EXTENSIONS]
    for fault, extension in cases:
        proxy.spoiled[f"/{fault}/1.{extension}"] = fault
        store.put(tables.folder / "t" / "follows", fault, f"*.{extension}")

    def failed(name: str, users: str, follows: str) -> PenstockError:
        bench = Workbench(tmp_path / name)
        bench.folder.mkdir()
        return _refused(bench, users, follows)

    users = str(tables.folder / "t" / "users" / "*" / "*.parquet")
    nobody = store.address("users/*").replace(str(proxy.server_port), str(free_port()), 2)
    with ThreadPoolExecutor(len(cases) + 1) as pool:
        errors = {
            (fault, each): pool.submit(failed, f"{fault} {each}", users, store.address(f"{fault}/*.{each}"))
            for fault, each in cases
        }
        unreachable = pool.submit(failed, "unreachable", nobody, store.address("gone/0.parquet")).result()
    assert unreachable.code == "external-failure" and "the connection failed" in str(unreachable)
    for (fault, extension), error in errors.items():
        said = str(error.result())
        assert f"s3://{store.bucket}/{fault}/1.{extension}" in said
        code, words = FAULTS[fault]
        assert (error.result().code, words in said) == (code, True), said
    assert proxy.faults == proxy.spoiled.keys()


@pytest.mark.parametrize("extension", ["parquet", "csv.gz"])
def test_half_an_object(bench: Workbench, store: Store, extension: str) -> None:
    _tables(bench, extension)
    path = bench.folder / f"t/follows/1.{extension}"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    store.put(bench.folder / "t")
    error = _refused(bench, store.address("users"), store.address("follows"))
    assert error.code == "damaged-file" and f"follows/1.{extension} cannot be read as" in str(error)


def test_files_are_opened_few_times(bench: Workbench, store: Store, monkeypatch) -> None:
    """Twice each: once for the header, once for the rows; those of vertices once more for their fields."""
    _tables(bench)
    store.put(bench.folder / "t")
    opened: list[str] = []
    open_ = addresses.DataFile.open
    monkeypatch.setattr(addresses.DataFile, "open", lambda self: (opened.append(self.path), open_(self))[1])
    import_tables(_spec(bench, store.address("users"), store.address("follows")), bench.out)
    assert {path: opened.count(path) for path in opened if "follows" in path} == {
        f"{store.bucket}/follows/{number}.parquet": 2 for number in range(2)
    }
    assert max(map(opened.count, opened)) == 3
