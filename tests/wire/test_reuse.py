"""Freed memory stays with the process, where the allocator can be told so."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource, sys
from penstock.memory import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
if sys.argv[1] == "keep":
    assert keep_freed_memory()

def rounds():
    for _ in range(50):
        blocks = [libc.malloc(1 << 20) for _ in range(8)]
        for block in blocks:
            ctypes.memset(block, 1, 1 << 20)
        for block in reversed(blocks):
            libc.free(block)

rounds()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
rounds()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_pages_are_not_made_anew() -> None:
    """50 rounds of 8 MiB: with the usual settings pages are made again and again, then hardly any."""
    faults = {}
    for way in ("usual", "keep"):
        done = subprocess.run([sys.executable, "-c", FAULTS, way], capture_output=True, text=True, check=True)
        faults[way] = int(done.stdout)
    assert faults["keep"] < 1000 < faults["usual"]
