"""Compiled kernels are kept by their sources, shared by checkouts and compiled anew when an imported source changes;
one version serves arrays that may be written and arrays that may not.
"""

import fcntl
import gc
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numba.core import types
from numba.core.compiler import Flags
from numba.core.errors import TypingError

import penstock
from penstock import kernels
from penstock.graph import hashing

COUNT = """
import numpy as np
from penstock.graph import csr
csr._count(np.array([1, 1], np.int32), np.zeros(3, np.int64))
hits = sum(sum(kernel.stats.cache_hits.values()) for kernel in vars(csr).values() if hasattr(kernel, "stats"))
misses = sum(sum(kernel.stats.cache_misses.values()) for kernel in vars(csr).values() if hasattr(kernel, "stats"))
print(hits, misses)
"""


class Pair(NamedTuple):
    left: np.ndarray
    right: tuple[np.ndarray, int]


def copy_of_sources(place):
    shutil.copytree(Path(penstock.__file__).parent, place / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    return place


def hits_and_misses(sources, cache):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    environment |= {"PYTHONPATH": str(sources), "NUMBA_CACHE_DIR": str(cache)}
    program = [sys.executable, "-c", COUNT]
    done = subprocess.run(program, capture_output=True, text=True, check=True, env=environment, cwd=cache.parent)
    return tuple(map(int, done.stdout.split()))


def test_checkouts_with_equal_sources_share_kernels(tmp_path):
    cache = tmp_path / "cache"
    first, second = copy_of_sources(tmp_path / "first"), copy_of_sources(tmp_path / "second")
    hits, misses = hits_and_misses(first, cache)
    assert hits == 0 and misses > 0
    # A source that no kernel imports changes nothing for them, and one that they import makes them anew.
    with (second / "penstock" / "api" / "training.py").open("a") as file:
        file.write("\n# A remark.\n")
    assert hits_and_misses(second, cache) == (misses, 0)
    with (second / "penstock" / "graph" / "csr.py").open("a") as file:
        file.write("\n# A remark.\n")
    assert hits_and_misses(second, cache) == (0, misses)
    assert hits_and_misses(first, cache) == (misses, 0)


def test_a_key_follows_imports(tmp_path, monkeypatch):
    """A module's key changes with what it imports, through other modules and through names that are modules."""

    def keys():
        for cached in (kernels.source_key, kernels._imports, kernels._file_of, kernels._text):
            cached.cache_clear()
        return {name: kernels.source_key(tmp_path / f"{name}.py") for name in ("a", "b", "c", "d")}

    monkeypatch.setattr(kernels, "_PACKAGE", tmp_path)
    (tmp_path / "a.py").write_text("from penstock.b import (\n    LIMIT,\n)\n")
    (tmp_path / "b.py").write_text("def late():\n    from penstock import c\nLIMIT = 3\n")
    (tmp_path / "c.py").write_text("import penstock.a\n")
    (tmp_path / "d.py").write_text("")
    before = keys()
    (tmp_path / "c.py").write_text("import penstock.a\nSTEP = 2\n")
    after = keys()
    assert {name for name in before if before[name] != after[name]} == {"a", "b", "c"}
    for cached in (kernels.source_key, kernels._imports, kernels._file_of, kernels._text):
        cached.cache_clear()


@pytest.mark.parametrize("age, kept", [(10, True), (40 * 24 * 3600, False)])
def test_old_kernels_are_removed(tmp_path, monkeypatch, age, kept):
    """Kernels of sources that nobody has used for a month go when new ones come."""
    from penstock import kernels
    from penstock.graph import csr

    other = tmp_path / "graph.csr" / ("0" * 32)
    other.mkdir(parents=True)
    used = other.stat().st_mtime - age
    os.utime(other, (used, used))
    kernels.SourceKeyedLocator(Path(csr.__file__), 1, tmp_path).ensure_cache_path()
    assert other.exists() == kept


def test_one_version_serves_arrays_that_may_be_written_and_arrays_that_may_not():
    """Whatever of its arguments is read-only, a kernel that says what it writes is compiled once."""
    values, out = np.arange(3.0), np.empty(3)
    fixed = values.view()
    fixed.flags.writeable = False

    @kernels.njit(cache=False, writes=("out",))
    def add(pair: Pair, more: np.ndarray, out: np.ndarray) -> None:
        for k in range(len(out)):
            out[k] = pair.left[k] + pair.right[0][k] + more[k]

    for left, right, more in itertools.product((values, fixed), repeat=3):
        add(Pair(left, (right, 1)), more, out)
        assert out.tolist() == [0.0, 3.0, 6.0]
    assert len(add.overloads) == 1
    assert gc.isenabled()


def test_a_kernel_writes_what_it_says():
    """A kernel that writes an array without saying so is not compiled."""

    @kernels.njit(cache=False, writes=())
    def fill(out: np.ndarray) -> None:
        out[0] = 1.0

    with pytest.raises(TypingError, match="readonly"):
        fill(np.empty(1))
    assert gc.isenabled()


def test_flags_of_compilations_are_equal_if_all_their_values_are():
    """Whether a value was given or is the usual one: what was compiled under equal flags is not compiled again."""
    one, other = Flags(), Flags()
    one.nrt, one.release_gil = Flags.options["nrt"].default, True
    other.release_gil = True
    assert one == other and hash(one) == hash(other) and one == one.copy()
    other.release_gil = False
    assert one != other and one != "release_gil"


def test_kernels_call_one_version_for_all_numbers():
    """Constants, 32-bit and 64-bit numbers, and arrays that are only read, are passed to one version; Python's calls
    have another, with the same results.
    """

    @kernels.njit(cache=False, writes=())
    def entry(values: np.ndarray, place: int) -> float:
        return values[place] if place >= 0 else 0.0

    @kernels.njit(cache=False, writes=("places",))
    def add(values: np.ndarray, places: np.ndarray) -> float:
        own = np.ones(3)
        total = entry(values, -1) + entry(values, 2) + entry(own, len(places))
        for k in range(len(places)):
            total += entry(values, places[k]) + entry(own, np.int64(places[k]))
            places[k] = 0
        return total

    values = np.array([1.0, 2.0, 4.0])
    assert add(values, np.array([0, 1], np.int32)) == 4 + 1 + 1 + 1 + 2 + 1
    assert len(entry._called.overloads) == 1 and not entry.overloads
    assert [entry(values, place) for place in (-1, np.int32(2))] == [0.0, 4.0]
    assert len(entry._called.overloads) == 1


def test_a_kernel_may_call_itself():
    @kernels.njit(cache=False)
    def factorial(number: int) -> int:
        if number <= 1:
            return 1
        return number * factorial(number - 1)

    @kernels.njit(cache=False)
    def twice(number: int) -> int:
        return 2 * factorial(number)

    assert (factorial(10), twice(10)) == (3628800, 7257600)


CALLED = """
import sys
import numpy as np
from penstock.sampling import exclusion
values = np.arange(4)
if "kernel" in sys.argv:
    made = exclusion.exclusion_of(np.array([[1, 2], [0, 3]]), 4, 4)
    assert exclusion.rows_excluded(made, values).tolist() == [0, 3]
if "python" in sys.argv:
    assert exclusion.find_excluded(values, 2 * np.arange(5), 2) == (4, 6)
kinds = exclusion.find_excluded.stats, exclusion.find_excluded._called.stats
print([sum(counts.values()) for kind in kinds for counts in (kind.cache_misses, kind.cache_hits)])
"""


def test_versions_for_kernels_and_for_python_are_kept_apart(tmp_path):
    """In the cache, the version that kernels call is not taken for the one that Python calls, nor the other way."""
    sources = Path(penstock.__file__).parent.parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    environment |= {"PYTHONPATH": str(sources), "NUMBA_CACHE_DIR": str(tmp_path)}

    def counted(*what):
        program = [sys.executable, "-c", CALLED, *what]
        done = subprocess.run(program, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
        return done.stdout.strip()

    assert counted("kernel") == "[0, 0, 1, 0]"
    (index,) = tmp_path.rglob("exclusion.find_excluded*.nbi")
    assert ".called" in index.name
    assert counted("python") == "[1, 0, 0, 0]"
    assert counted("kernel", "python") == "[0, 1, 0, 0]"


def test_a_version_that_another_process_compiles_is_waited_for(tmp_path, monkeypatch):
    """And is then found in the cache; nothing else is left there."""
    monkeypatch.setattr(kernels, "kernel_folder", lambda: tmp_path)
    ours, theirs = (kernels.njit(cache=True)(hashing.unit_draws.py_func) for _ in range(2))
    path = kernels._lock_of(ours, (types.uint64, types.int64, types.int64))
    held = [os.open(path, os.O_CREAT | os.O_RDWR)]
    fcntl.flock(held[0], fcntl.LOCK_EX)

    def meanwhile(seconds):
        theirs(np.uint64(3), 5, 0)
        os.close(held.pop())

    monkeypatch.setattr(kernels.time, "sleep", meanwhile)
    np.testing.assert_array_equal(ours(np.uint64(3), 5, 0), hashing.unit_draws(np.uint64(3), 5, 0))
    assert not held and not ours.stats.cache_misses and sum(ours.stats.cache_hits.values()) == 1
    assert theirs.stats.cache_misses and not list(tmp_path.rglob("*.lock"))


def test_a_process_that_stands_still_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "kernel_folder", lambda: tmp_path)
    monkeypatch.setattr(kernels, "_LONGEST_COMPILATION_S", 0.0)
    ours = kernels.njit(cache=True)(hashing.unit_draws.py_func)
    file = os.open(kernels._lock_of(ours, (types.uint64, types.int64, types.int64)), os.O_CREAT | os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    ours(np.uint64(3), 5, 0)
    assert ours.stats.cache_misses
    os.close(file)


def test_kept_versions_are_loaded_before_they_are_called(monkeypatch):
    """None is compiled for that, and a kernel that is not there is no error."""
    hashing.unit_draws(np.uint64(0), 1)
    name, monkeypatched = "penstock.graph.hashing:unit_draws", dict(kernels._kept_kernels)
    monkeypatch.setattr(kernels, "_kept_kernels", monkeypatched)
    again = kernels.njit(cache=True)(hashing.unit_draws.py_func)
    begun = kernels.compilation.begun
    assert name in monkeypatched and name not in kernels.used_kernels()
    kernels.load_kept(name)
    kernels.load_kept("penstock.graph.hashing:no_such_kernel")
    assert again.overloads.keys() >= hashing.unit_draws.overloads.keys()
    assert name in kernels.used_kernels() and kernels.compilation.begun == begun
