"""A slow simulator in plain Python that shares nothing with the engine: every flow by itself, every rate anew."""

import math

TINY = 1e-9


def simulate_plainly(load, network, placement, amounts, policy):
    """Starts and ends of every (iteration, item) under a policy: its name here, or ranks [iterations, flows]."""
    return _Run(load, network, placement, amounts, policy).run()


class _Run:
    def __init__(self, load, network, placement, amounts, policy):
        self.load, self.network, self.amounts, self.policy = load, network, amounts, policy
        self.machine = [int(machine) for machine in load.settled(placement, len(network.machines))]
        self.iterations = len(amounts.seconds)
        self.capacity = [float(rate) for rate in network.capacities]
        self.waits = {(n, i): 0 for n in range(self.iterations) for i in range(load.items)}
        self.followers = [[] for _ in range(load.items)]
        for before, after, lag in zip(load.before.tolist(), load.after.tolist(), load.lags.tolist(), strict=True):
            self.followers[before].append((after, lag))
            for n in range(lag, self.iterations):
                self.waits[n, after] += 1
        self.starts, self.ends = {}, {}
        self.tasks, self.left = {}, {}
        self.now = 0.0

    def rank(self, n, flow):
        return self.policy[n, flow]

    def path(self, flow):
        load = self.load
        return self.network.path(self.machine[load.sources[flow]], self.machine[load.targets[flow]]).tolist()

    def start(self, instance):
        stack = [instance]
        while stack:
            n, item = stack.pop()
            self.starts[n, item] = self.now
            if item < self.load.tasks:
                if self.amounts.seconds[n, item] > 0:
                    self.tasks[n, item] = self.now + self.amounts.seconds[n, item]
                    continue
            elif self.path(item - self.load.tasks) and self.amounts.sizes[n, item - self.load.tasks] > 0:
                self.left[n, item - self.load.tasks] = float(self.amounts.sizes[n, item - self.load.tasks])
                continue
            stack += self.end(n, item)

    def end(self, n, item):
        self.ends[n, item] = self.now
        freed = []
        for after, lag in self.followers[item]:
            if n + lag < self.iterations:
                self.waits[n + lag, after] -= 1
                if self.waits[n + lag, after] == 0:
                    freed.append((n + lag, after))
        return freed

    def run(self):
        for instance in [each for each, count in self.waits.items() if count == 0]:
            self.start(instance)
        while self.tasks or self.left:
            rates = RATES[self.policy](self) if isinstance(self.policy, str) else _by_rank(self, self.rank)
            times = [end - self.now for end in self.tasks.values()]
            times += [left / rates[flow] for flow, left in self.left.items() if rates[flow] > 0]
            step = min(times)
            self.now += step
            done = [each for each, end in self.tasks.items() if end <= self.now * (1 + 1e-12)]
            for each in done:
                del self.tasks[each]
            for flow in list(self.left):
                self.left[flow] -= rates[flow] * step
                if self.left[flow] <= TINY * self.amounts.sizes[flow[0], flow[1]]:
                    del self.left[flow]
                    done.append((flow[0], flow[1] + self.load.tasks))
            for freed in [each for n, item in done for each in self.end(n, item)]:
                self.start(freed)
        return self.starts, self.ends


def _oes(run):
    crossing = [0] * len(run.capacity)
    for _, flow in run.left:
        for link in run.path(flow):
            crossing[link] += 1
    return {(n, flow): min(run.capacity[link] / crossing[link] for link in run.path(flow)) for n, flow in run.left}


def _filled(run, flows, spare):
    """Max-min rates from what is spare, by raising all rates together until a link is full."""
    rates, growing = dict.fromkeys(flows, 0.0), set(flows)
    while growing:
        crossing = {}
        for _, flow in growing:
            for link in run.path(flow):
                crossing[link] = crossing.get(link, 0) + 1
        raised = max(0.0, min(spare[link] / count for link, count in crossing.items()))
        for link, count in crossing.items():
            spare[link] -= raised * count
        for each in growing:
            rates[each] += raised
        growing = {
            each for each in growing if all(spare[link] > TINY * run.capacity[link] for link in run.path(each[1]))
        }
    return rates


def _by_rank(run, rank):
    spare, rates = list(run.capacity), {}
    for value in sorted({rank(*each) for each in run.left}):
        rates |= _filled(run, [each for each in run.left if rank(*each) == value], spare)
    return rates


def _in_order(run, order):
    spare, rates = list(run.capacity), {}
    for each in order:
        rate = min(spare[link] for link in run.path(each[1]))
        for link in run.path(each[1]):
            spare[link] = spare[link] - rate if spare[link] - rate > TINY * run.capacity[link] else 0.0
        rates[each] = rate
    return rates


def _fifo(run):
    return _in_order(run, sorted(run.left, key=lambda each: (run.starts[each[0], each[1] + run.load.tasks], each)))


def _mrtf(run):
    def remaining(each):
        return run.left[each] / min(run.capacity[link] for link in run.path(each[1]))

    return _in_order(run, sorted(run.left, key=lambda each: (remaining(each), each)))


def _omcoflow(run):
    alone = {}
    for n, flow in run.left:
        number = run.load.coflows[flow]
        loads = [0.0] * len(run.capacity)
        for other in range(run.load.flows):
            if run.load.coflows[other] == number:
                for link in run.path(other):
                    loads[link] += run.amounts.sizes[n, other] / run.capacity[link]
        alone[n, flow] = run.amounts.sizes[n, flow] / max(loads)
    wanted = [0.0] * len(run.capacity)
    for (_, flow), rate in alone.items():
        for link in run.path(flow):
            wanted[link] += rate
    return {
        each: rate / max(1.0, *(wanted[link] / run.capacity[link] for link in run.path(each[1])))
        for each, rate in alone.items()
    }


def _tail_rank(run):
    """Ranks by the longest chain to the end, computed by recursion."""
    known = {}
    load = run.load

    def tail(n, item):
        if (n, item) not in known:
            if item < load.tasks:
                own = run.amounts.seconds[n, item]
            else:
                path = run.path(item - load.tasks)
                own = run.amounts.sizes[n, item - load.tasks] / min(run.capacity[k] for k in path) if path else 0.0
            later = [tail(n + lag, after) for after, lag in run.followers[item] if n + lag < run.iterations]
            known[n, item] = max(later, default=0.0) + own
        return known[n, item]

    longest = max(tail(n, item) for n in reversed(range(run.iterations)) for item in range(load.items))
    step = longest / (16 * run.iterations)
    return {(n, flow): math.floor((longest - tail(n, flow + load.tasks)) / step) for n, flow in run.left}


def _critical_path(run):
    ranks = _tail_rank(run)
    return _by_rank(run, lambda n, flow: ranks[n, flow])


RATES = {
    "oes": _oes,
    "fair": lambda run: _by_rank(run, lambda n, flow: 0),
    "iteration-first": lambda run: _by_rank(run, lambda n, flow: n),
    "fifo": _fifo,
    "mrtf": _mrtf,
    "omcoflow": _omcoflow,
    "critical-path": _critical_path,
    "by-number": lambda run: _by_rank(run, lambda n, flow: flow // 2),
}
