"""The command line: one file per command group; everything it does is a call into the library."""

from penstock.cli.main import main

__all__ = ["main"]
