"""A slow simulation of requests over paths, written another way: explicit queues, and events of three kinds."""

import heapq
from collections import deque

import numpy as np


def plain_ends(routes, arrivals, paths) -> np.ndarray:
    """When each request ends, where request i comes at arrivals[i] and takes paths[i]; delays must not be random."""
    assert (routes.jitter[:, 0] == routes.jitter[:, 1]).all()
    idle = routes.capacity.tolist()
    queues = [deque() for _ in idle]
    ends = np.full(len(arrivals), np.nan)
    events = [
        (float(at), number, number, "comes", int(routes.first[paths[number]])) for number, at in enumerate(arrivals)
    ]
    heapq.heapify(events)
    count = len(events)

    def begin(resource, now):
        nonlocal count
        while idle[resource] and queues[resource]:
            request, visit = queues[resource].popleft()
            idle[resource] -= 1
            heapq.heappush(events, (now + routes.service[visit], count, request, "served", visit))
            count += 1

    while events:
        now, _, request, what, visit = heapq.heappop(events)
        if what == "comes":
            if visit == routes.first[paths[request] + 1]:
                ends[request] = now
                continue
            resource = int(routes.resource[visit])
            queues[resource].append((request, visit))
        else:
            resource = int(routes.resource[visit])
            idle[resource] += 1
            delay = routes.delay[visit] + routes.jitter[visit, 0]
            heapq.heappush(events, (now + delay, count, request, "comes", visit + 1))
            count += 1
        begin(resource, now)
    return ends
