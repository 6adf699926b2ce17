"""A binary heap of events by time. Of two at one time the smaller request goes first: nothing depends on history."""

from penstock.graph.arrays import Array
from penstock.graph.inline_kernels import inner


@inner
def push_event(times: Array, requests: Array, size: int, time: float, request: int) -> None:
    """Add an event to the heap of `size` events."""
    k = size
    while k > 0:
        parent = (k - 1) >> 1
        if times[parent] < time or (times[parent] == time and requests[parent] < request):
            break
        times[k], requests[k] = times[parent], requests[parent]
        k = parent
    times[k], requests[k] = time, request


@inner
def pop_event(times: Array, requests: Array, size: int) -> None:
    """Take the first event, which the caller has read, out of the heap of `size` events."""
    size -= 1
    time, request = times[size], requests[size]
    k = 0
    while 2 * k + 1 < size:
        least = 2 * k + 1
        other = least + 1
        if other < size and (
            times[other] < times[least] or (times[other] == times[least] and requests[other] < requests[least])
        ):
            least = other
        if time < times[least] or (time == times[least] and request < requests[least]):
            break
        times[k], requests[k] = times[least], requests[least]
        k = least
    times[k], requests[k] = time, request
