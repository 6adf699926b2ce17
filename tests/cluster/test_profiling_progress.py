"""What is shown while a profile is measured: iterations, and not epochs of a run that nobody asked for."""

from penstock.cluster.profiling import _MeasuringProgress
from penstock.progress import Progress


class Heard(Progress):
    def __init__(self):
        super().__init__()
        self.said, self.done = [], 0

    def start(self, what, total, unit):
        self.said.append(f"{what} {total} {unit}")

    def advance(self, amount):
        self.done += amount

    def status(self, line):
        self.said.append(line)

    def finish(self):
        self.said.append("finished")

    def note(self, sentence):
        self.said.append(sentence)


def test_iterations_are_counted_and_no_epoch_is_named():
    heard = Heard()
    progress = _MeasuringProgress(heard, 54)
    with progress.step("training", 4 * 54, "batches"):
        for _ in range(60):
            progress.advance(1)
        progress.status("epoch 1/54: loss 1.2")
    progress.note("The graph has no labels.")
    assert heard.said == ["measuring 54 iterations", "finished", "The graph has no labels."]
    assert heard.done == 54
