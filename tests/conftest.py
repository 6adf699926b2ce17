"""Settings for every test, and where the GPU's kernels run: on the GPU, or in Triton's interpreter."""

import gc
import importlib.util
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path

# Read by OpenMP when torch is imported: threads that wait leave their core to other tests.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Whatever was measured on this machine, tests predict with the figures that come with Penstock.
os.environ["PENSTOCK_OPERATORS"] = "shipped"

import pytest
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts background jobs so, and programs under test would inherit it: some are interrupted on purpose.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Kernels compile on first use, so a single example may take seconds: no deadline, and no verdict on slowness.
# `make test-long` gives every property ten times as many examples (--hypothesis-profile=long).
settings.register_profile("penstock", deadline=None, suppress_health_check=list(HealthCheck), max_examples=20)
settings.register_profile("long", settings.get_profile("penstock"), max_examples=200)
settings.load_profile("penstock")


COMPILING = (
    ("tests/sampling/", "tests/store/", "tests/nn/", "tests/pipeline/"),
    ("tests/simulate/", "tests/plan/", "tests/partition/", "tests/graph/", "tests/paths/", "tests/coflow/"),
)
"""Where most kernels are met, hardly one of them in both groups. Each group stays in one test process, and they begin
first: where no kernel was compiled before, each is compiled once, and processes that later tests start find them."""
ONE_AFTER_THE_OTHER = ("tests/system/", "tests/cluster/launch/", "tests/benchmarks/")
"""Tests that look at what is left on the whole machine, or leave it for others to see: never two at a time."""
LONGEST = (
    *(place for group in COMPILING for place in group),
    "tests/train/",
    *ONE_AFTER_THE_OTHER,
    "tests/service/test_queue_scheduling.py",
    "tests/report/test_report_browser.py",
    "tests/cli/",
    "tests/test_",
    "tests/service/",
)
"""Where tests take longest. They begin first, so that no test process is left with much to do when others are done.
Those with many processes wait for others to compile what each process would compile."""


RUNS_OF_SEVERAL = ("tests/gpu/test_cluster_on_gpu.py", "tests/gpu/test_shards_on_gpu.py")
AT_A_TIME = 4
"""On a GPU, tests of runs of several processes, and how many of them at a time. Processes of one run wait for each
other on the GPU itself, where each process gets its turn: the more runs there are, the longer each sum takes."""


def group_of(test: str) -> str:
    """With several test processes, a file's tests stay in one, as they share what they have made."""
    for group in (*COMPILING, ONE_AFTER_THE_OTHER):
        if test.startswith(group):
            return group[0]
    return test.partition("::")[0]


MEMORY, ROOM = Path("/dev/shm"), 6 << 30
"""Where tests write, if so many bytes are free: on a disk thousands of small runs wait for checkpoints."""


def in_memory() -> bool:
    """Whether tests write into memory; a folder that the caller chose comes first (pytest's variable, `--basetemp`)."""
    return MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM


class NamesAtOnce:
    """Names a test as it fails, and where a run is interrupted the tests that did not run, by their files."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._chosen, self._begun = config, dict[str, None](), set[str]()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Remember the tests of this process."""
        self._chosen.update((item.nodeid, None) for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        """Remember the tests of another process."""
        self._chosen.update(dict.fromkeys(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a line for a test that fails, with the first line of what it says."""
        self._begun.add(report.nodeid)
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = str(report.longrepr if crash is None else crash.message).strip().partition("\n")[0]
            self._write(f"FAILED {report.nodeid} ({report.when}): {said[:200]}")

    def pytest_terminal_summary(self) -> None:
        """Write how many tests of each file did not run."""
        left = Counter(name.partition("::")[0] for name in self._chosen if name not in self._begun)
        for file, count in left.items():
            self._write(f"NOT RUN {count} of {file}")

    def _write(self, line: str) -> None:
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        reporter.ensure_newline()
        reporter.write_line(line)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose where tests write, and where kernels of a GPU run.

    A process that only shares tests out to others, which wait for it, does not ask for a GPU.
    """
    if in_memory():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    if config.option.markexpr == "gpu" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(NamesAtOnce(config))
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        return
    import torch

    from interpreted_kernels import launch_faster

    if not torch.cuda.is_available():
        # Read by Triton when it is imported: kernels then run on the host, on the host's tensors.
        os.environ["TRITON_INTERPRET"] = "1"
        if importlib.util.find_spec("triton") is not None:
            launch_faster()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Free the memory that tests have written into, unless one has failed."""
    written = session.config._tmp_path_factory._basetemp
    if written is not None and written.is_relative_to(MEMORY) and exitstatus == 0:
        shutil.rmtree(written, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported and collected stays: Python's garbage collection need not look at it, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class LastFirst(pytest.Dir):
    """A folder whose last file is collected first."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """The files and folders in it."""
        return reversed([*super().collect()])


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Of two test processes one collects from the end: each finds half of the files rewritten and kept by the other."""
    # A GPU's tests keep the order in which they were collected, which must be that of all processes.
    last_first = os.environ.get("PYTEST_XDIST_WORKER") == "gw1" and parent.config.option.markexpr != "gpu"
    return LastFirst.from_parent(parent, path=path) if last_first else None


def cover(cells: list[pytest.Item], ways: int) -> list[pytest.Item]:
    """As few cells of a product of parameters as show each value (`ways` is 1), or each pair of values (2)."""
    shown = {cell: set(combinations(enumerate(cell.callspec._idlist), ways)) for cell in cells}
    missing, chosen = set().union(*shown.values()), []
    while missing:
        chosen.append(max(cells, key=lambda cell: len(shown[cell] & missing)))
        missing -= shown[chosen[-1]]
    return chosen


def mark_rest_long(items: list[pytest.Item]) -> None:
    """Of tests marked `covering`, leave a cover of the cells to `make test`; `make test-long` and GPUs run the others.

    Cells that are long already are no part of the product.
    """
    products = dict[str, list[pytest.Item]]()
    for item in items:
        if item.get_closest_marker("covering") is not None and item.get_closest_marker("long") is None:
            products.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cells in products.values():
        kept = cover(cells, *cells[0].get_closest_marker("covering").args)
        for cell in cells:
            if cell not in kept:
                cell.add_marker(pytest.mark.long)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests as they begin, whatever order they were collected in. A GPU's begin in the order asked for, but
    for runs of several processes, which take longest.
    """
    mark_rest_long(items)
    if config.option.markexpr == "gpu":
        items.sort(key=lambda item: not item.nodeid.startswith(RUNS_OF_SEVERAL))
        return
    items.sort(key=lambda item: ([not item.nodeid.startswith(place) for place in LONGEST], item.nodeid.split("::")[0]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Give a group to each test process that has nothing left to do, in the order of the tests.

    A GPU's tests are shared out one by one, as none of them looks at the whole machine; all but runs of several
    processes, which would slow each other down.
    """
    from xdist.scheduler import LoadScopeScheduling

    of_several = dict[str, str]()

    def group_on_gpu(test: str) -> str:
        if not test.startswith(RUNS_OF_SEVERAL):
            return test
        return of_several.setdefault(test, f"runs of several processes, {len(of_several) % AT_A_TIME}")

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_on_gpu(nodeid) if config.option.markexpr == "gpu" else group_of(nodeid)

    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def tasks_are_forked():
    """Clusters and services of this process start theirs as forks, which saves each seconds of importing.

    The value is what starts a task, and a warm program, outside tests.
    """
    from forks import ForkedTask, fork_warm_program
    from penstock.cluster.launch import local
    from penstock.service.workers import pool

    programs = local.LocalProcess, pool.start_warm_program
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "LocalProcess", ForkedTask)
        patch.setattr(pool, "start_warm_program", fork_warm_program)
        yield programs


@pytest.fixture
def tasks_are_programs(tasks_are_forked, monkeypatch):
    """Clusters start their tasks as they do outside tests: as programs that import what they need."""
    monkeypatch.setattr("penstock.cluster.launch.local.LocalProcess", tasks_are_forked[0])


@pytest.fixture(scope="module")
def warm_program_is_program(tasks_are_forked):
    """Services start their warm program as they do outside tests: it imports what it needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.service.workers.pool.start_warm_program", tasks_are_forked[1])
        yield


@pytest.fixture
def added():
    """`added(registry, name, entry)`: the registry has that entry until the test ends."""
    with ExitStack() as stack:
        yield lambda registry, name, entry: stack.enter_context(registry.added(name, entry))


@pytest.fixture
def own_data_sets(tmp_path, monkeypatch) -> None:
    """Data sets are made anew for this test, and not found in a cache of the user's, which may hold larger ones."""
    monkeypatch.setattr("penstock.graph.generate.make.cache_folder", lambda: tmp_path / "data-sets")


@pytest.fixture
def device():
    """A device for Triton kernels: the GPU, or the host under the interpreter."""
    import torch

    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def cuda_device():
    """The GPU, for what an interpreter cannot show: streams, graphs, pinned memory. Other tests left nothing there."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    gc.collect()
    # torch keeps a stream for recordings, and gives a process 32 in turn: after some tests a run would get it once more
    # for something else, with its workspaces.
    torch.cuda.graph.default_capture_stream = None
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.device("cuda")
