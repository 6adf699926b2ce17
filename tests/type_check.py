"""`mypy` without collections of Python's garbage: a sixth less time, for 2.1 instead of 0.9 GiB of memory at its end.

What mypy reads and finds stays until it ends. It collects again after it has read all files; here it does not.
"""

import gc

from mypy.__main__ import console_entry

if __name__ == "__main__":
    gc.disable()
    gc.enable = lambda: None
    console_entry()
