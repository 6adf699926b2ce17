"""How good are the numbers of bins that are chosen by predicted cost, beside the best of a sweep?

Steps are simulated on the source's hardware (`whole_graph_cases.py`) with links such that communication takes 0.5, 1
and 2 times compute, for 1 to 32 bins. `best` is the fastest of the sweep, and all columns named by a number of bins are
multiples of its time. `chosen` is what a worker chooses without a plan, by the formula of
`train.whole.shared.bin_choice` with the costs of the profile, and `over best` its time (of the two nearest numbers of
the sweep the slower one). A plan simulates 2 to 16 bins and takes the best of them (`plan over best`).
For a sweep on real links: python benchmarks/whole_graph_hosts.py --ways both --bins 8, for each number.
Run: python benchmarks/whole_graph_bins.py [--graphs products,papers] [--models sage] [--workers 4,8] [--ratios 0.5,1,2]
[--edges 1000000] [--json]
"""

import argparse
from typing import Any

from penstock.cost.profile import Profile
from penstock.plan.workloads.whole_section import layer_costs
from penstock.train.whole.shared.execution import best_number
from products_graph import show
from whole_graph_cases import Cuts, Exchange, predicted, volume
from whole_graph_simulated import REFINED, cases

SWEEP = (1, 2, 4, 8, 16, 32)
PLANNED = (2, 4, 8, 16)
"""Numbers that a plan tries."""
MOST_FLOWS = 8192
"""Of a layer: more take minutes to simulate."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", default="products,papers")
    parser.add_argument("--models", default="sage,gat")
    parser.add_argument("--workers", default="4,8")
    parser.add_argument("--ratios", default="0.5,1,2")
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for about, *case in cases(args):
        ratios = map(float, args.ratios.split(","))
        rows += [about | {"ratio": ratio} | swept(*case, ratio) for ratio in ratios]
    show("numbers of bins", rows, args.json)


def swept(cuts: Cuts, workers: int, profile: Profile, sums: bool, ratio: float) -> dict[str, Any]:
    """The sweep and both choices."""
    compute, sent = volume(cuts.counts(REFINED, workers, 1, eager=False, sums=sums).layers, profile)
    link = sent / (ratio * compute)
    tried = [bins for bins in SWEEP if workers**2 * bins <= MOST_FLOWS]
    seconds = {
        bins: predicted(
            cuts, REFINED, workers, profile, Exchange("bins", "both", bins, "hermod", sums=sums), link
        ).iteration_s
        for bins in tried
    }
    best = min(seconds, key=lambda bins: seconds[bins])
    costs = layer_costs(profile, "cpu")
    fixed = sum(cost.forward.fixed + cost.backward.fixed for cost in costs)
    # A pass forward takes a third of both.
    chosen = best_number(compute / 3, 2 * compute / 3, ratio * compute / 2, fixed)
    near = [
        max(each for each in tried if each <= chosen),
        min((each for each in tried if each >= chosen), default=best),
    ]
    return {
        "best": best,
        "chosen": chosen,
        "over best": max(seconds[bins] for bins in near) / seconds[best],
        "plan over best": min(seconds[bins] for bins in PLANNED if bins in seconds) / seconds[best],
        **{f"{bins}": seconds[bins] / seconds[best] for bins in tried},
    }


if __name__ == "__main__":
    main()
