"""A new launcher is one file with its entry and one line in a table."""

import sys
from types import SimpleNamespace

from penstock.cluster.launch import LauncherEntry, launcher_entry, make_launcher, take_part
from penstock.hardware.cluster import LAUNCHERS, ClusterDocument, LauncherFacts, Machine


class NotingLauncher:
    """Starts nothing, and notes what it was asked to start."""

    interface = None

    def __init__(self, cluster, run):
        self.cluster, self.run, self.asked = cluster, run, []

    def start(self, setup):
        """Note a task."""
        self.asked.append(setup)

    def close(self):
        """Nothing is left."""


def test_a_launcher_is_one_entry(tmp_path, monkeypatch):
    found = {"machines": []}
    entry = LauncherEntry(NotingLauncher, take_part=lambda cluster: False, discover=lambda fields: found)
    monkeypatch.setitem(sys.modules, "noting_launcher", SimpleNamespace(NOTING=entry))
    monkeypatch.setitem(LAUNCHERS, "noting", LauncherFacts("noting_launcher:NOTING"))  # the one line
    cluster = ClusterDocument(machines=[Machine(name="a")]).model_copy(update={"launcher": "noting"})
    launcher = make_launcher(cluster, tmp_path)
    assert isinstance(launcher, NotingLauncher) and launcher.run == tmp_path
    assert not take_part(cluster)
    assert launcher_entry("noting").discover({}) == found


def test_every_launcher_has_an_entry():
    for name, facts in LAUNCHERS.items():
        entry = launcher_entry(name)
        assert isinstance(entry, LauncherEntry) and (entry.discover is not None) == facts.discovers
    assert [name for name, facts in LAUNCHERS.items() if facts.one_host] == ["local"]
