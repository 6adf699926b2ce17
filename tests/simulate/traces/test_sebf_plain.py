"""`sebf` against itself written plainly: dictionaries and lists, every flow looked at in every event."""

import numpy as np
import pytest
from hypothesis import given
from switch_cases import switch_cases

from penstock.simulate.traces import simulate_trace
from penstock.simulate.traces.coflows import rates_of

_NOTHING = 1e-9  # relative to what there was: what rounding leaves


class _Plain:
    """Varys: order, rates of all coflows, and what backfilled flows leave."""

    def __init__(self, coflows, rate):
        self.coflows, self.capacities = coflows, rates_of(rate, coflows.ports)
        self.left, self.rates = coflows.sizes.copy(), np.zeros(coflows.flows)
        self.spare, self.present = self.capacities.copy(), []

    def flows(self, coflow, side=None):
        mine = range(*self.coflows.first[coflow : coflow + 2])
        return [flow for flow in mine if self.left[flow] > 0 and (side is None or side in self.sides(flow))]

    def sides(self, flow):
        return int(self.coflows.sources[flow]), self.coflows.ports + int(self.coflows.targets[flow])

    def bottleneck(self, coflow, rates):
        loads = np.zeros(len(rates))
        for flow in self.flows(coflow):
            loads[list(self.sides(flow))] += self.left[flow]
        return max((load / rate if rate > 0 else np.inf for load, rate in zip(loads, rates, strict=True) if load > 0))

    def set_rates(self):
        self.rates[:], self.spare = 0.0, self.capacities.copy()
        arrivals = self.coflows.arrivals
        self.present.sort(key=lambda each: (self.bottleneck(each, self.capacities), arrivals[each], each))
        for coflow in self.present:
            seconds = self.bottleneck(coflow, self.spare)
            for flow in self.flows(coflow) if seconds < np.inf else []:
                self.give(flow, self.left[flow] / seconds)
        self.backfill(range(self.coflows.ports))

    def backfill(self, sides):
        for coflow in self.present:
            for flow in (flow for side in sides for flow in self.flows(coflow, side)):
                self.give(flow, self.spare[list(self.sides(flow))].min())

    def give(self, flow, rate):
        self.rates[flow] += rate
        for side in self.sides(flow):
            self.spare[side] -= rate
            if self.spare[side] < _NOTHING * self.capacities[side]:
                self.spare[side] = 0.0

    def completions(self):
        out, now = self.coflows.arrivals.copy(), 0.0
        coming = sorted(range(self.coflows.count), key=lambda each: (out[each], each))
        while coming or self.present:
            moving = np.flatnonzero(self.rates > 0)
            end = now + (self.left[moving] / self.rates[moving]).min() if len(moving) else np.inf
            then = min(end, self.coflows.arrivals[coming[0]] if coming else np.inf)
            self.left -= self.rates * (then - now)
            ended = [flow for flow in moving if self.left[flow] < _NOTHING * self.coflows.sizes[flow]]
            now = then
            for flow in ended:
                self.left[flow], freed = 0.0, self.rates[flow]
                self.rates[flow] = 0.0
                self.spare[list(self.sides(flow))] += freed
            done = [coflow for coflow in self.present if not self.flows(coflow)]
            out[done] = now
            new = [coflow for coflow in coming if self.coflows.arrivals[coflow] <= now]
            coming = coming[len(new) :]
            self.present = [each for each in self.present + new if self.flows(each)]
            if done or new:
                self.set_rates()
            else:
                self.backfill(sorted({side for flow in ended for side in self.sides(flow)}))
        return out


@given(case=switch_cases())
def test_sebf_is_its_plain_self(case):
    coflows, rate = case
    found = simulate_trace(coflows, "sebf", rate).completions
    assert found == pytest.approx(_Plain(coflows, rate).completions(), rel=1e-6)
