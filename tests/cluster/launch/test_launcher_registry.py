"""A new launcher is one file with its entry and one line in a table."""

from penstock.cluster.launch import LAUNCHERS, LauncherEntry, make_launcher, take_part
from penstock.hardware.cluster import LAUNCHER_FACTS, ClusterDocument, LauncherFacts, Machine


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


def test_a_launcher_is_one_entry(tmp_path):
    found = {"machines": []}
    entry = LauncherEntry(NotingLauncher, take_part=lambda cluster: False, discover=lambda fields: found)
    with LAUNCHERS.added("noting", entry), LAUNCHER_FACTS.added("noting", LauncherFacts()):  # the two lines
        cluster = ClusterDocument(machines=[Machine(name="a")], launcher="noting")
        launcher = make_launcher(cluster, tmp_path)
        assert isinstance(launcher, NotingLauncher) and launcher.run == tmp_path
        assert not take_part(cluster)
        assert LAUNCHERS["noting"].discover({}) == found


def test_every_launcher_has_an_entry_and_facts():
    assert list(LAUNCHERS) == list(LAUNCHER_FACTS)
    for name, entry in LAUNCHERS.items():
        assert isinstance(entry, LauncherEntry) and entry.facts == LAUNCHER_FACTS[name]
        assert (entry.discover is not None) == entry.facts.discovers
    assert [name for name, facts in LAUNCHER_FACTS.items() if facts.one_host] == ["local"]
