"""A command run inside the test's own process: starting one costs seconds."""

import json
import sys

from penstock.cli.main import app, run
from refusals import Refusal


def command(monkeypatch, capsys, *arguments):
    """(exit code, stdout, stderr) of `penstock ...`."""
    monkeypatch.setattr(sys, "argv", ["penstock", *map(str, arguments)])
    capsys.readouterr()
    forget_commands()
    code = run()
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def forget_commands():
    """Each run of the command line adds its command; a process that ends after one never has two."""
    app.registered_commands.clear()
    app.registered_groups.clear()


def answer(monkeypatch, capsys, *arguments):
    """The object a successful command prints; stderr stays empty."""
    code, out, err = command(monkeypatch, capsys, *arguments, "--json")
    assert code == 0, err
    assert err == ""
    return json.loads(out, parse_constant=_refuse)


def refusal(monkeypatch, capsys, *arguments):
    """The one sentence of a command that must fail with exit code 2, with the error's code as its `code`."""
    code, out, err = command(monkeypatch, capsys, *arguments, "--json")
    assert (code, out) == (2, ""), err
    (line,) = err.splitlines()
    error = json.loads(line)
    text = Refusal(error["error"], error["code"])
    assert text.endswith((".", "?")), text
    assert not text.endswith("?."), text
    return text


def _refuse(word):
    raise ValueError(f"{word} is no JSON")
