"""Ctrl-C while a class is made, as imports do: Python makes another error of it."""

import subprocess
import sys

_START = """
import sys
from penstock.cli import main
import penstock.cli.main

def run():
    class Interrupting:
        def __set_name__(self, owner, name):
            raise KeyboardInterrupt

    class Made:
        attribute = Interrupting()

sys.modules["penstock.cli.main"].run = run
main()
"""


def test_an_interrupt_that_became_another_error_is_one_sentence():
    done = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.strip() == "Error: Interrupted: nothing was written."


def test_other_errors_stay():
    start = _START.replace("raise KeyboardInterrupt", "raise ValueError('other')")
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "other" in done.stderr
