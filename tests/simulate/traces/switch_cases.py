"""Small coflows on a switch, and what a schedule of them must keep."""

import numpy as np
from hypothesis import strategies as st

from penstock.simulate.traces.coflows import PortRates, TraceCoflows, coflows_from

PORTS = 4


@st.composite
def switch_cases(draw):
    """Up to six coflows over four ports, some at the same moment, and rates that may differ."""
    port = st.integers(0, PORTS - 1)
    flows = st.dictionaries(st.tuples(port, port), st.sampled_from([1.0, 2.0, 3.5, 8.0, 100.0]), max_size=8)
    arrival = st.sampled_from([0.0, 0.0, 1.0, 2.5, 30.0])
    coflows = draw(st.lists(st.tuples(arrival, flows), min_size=1, max_size=6))
    rates = st.lists(st.sampled_from([1.0, 1.0, 2.0, 3.0]), min_size=PORTS, max_size=PORTS)
    alike = draw(st.booleans())
    return coflows_from(PORTS, coflows), 2.0 if alike else PortRates(np.array(draw(rates)), np.array(draw(rates)))


def rates_over_time(coflows: TraceCoflows, changes):
    """Moments at which rates changed, and the rates of all flows from each on until the next, [moments, flows]."""
    moments = np.unique(changes["when"])
    rates = np.zeros((len(moments), coflows.flows))
    # Of several changes at one moment the last one counts, and they are written in order.
    for change in changes:
        rates[np.searchsorted(moments, change["when"]) :, change["flow"]] = change["rate"]
    return moments, rates


def side_rates(coflows: TraceCoflows, rates):
    """What all sides carry, [moments, 2 * ports]."""
    out = np.zeros((len(rates), 2 * coflows.ports))
    np.add.at(out.T, coflows.sources, rates.T)
    np.add.at(out.T, coflows.ports + coflows.targets, rates.T)
    return out
