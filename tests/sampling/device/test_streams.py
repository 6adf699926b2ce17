"""Captures and what must not happen meanwhile."""

import gc
import weakref

import pytest

from penstock.sampling.device.streams import nothing_collected


class Node:
    """Part of a circle, which only the collector frees."""

    def __init__(self):
        self.itself = self


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_while_steps_are_captured(enabled):
    gc.enable() if enabled else gc.disable()
    try:
        with nothing_collected():
            seen = weakref.ref(Node())
            with nothing_collected():
                pass
            # More objects than start a collection by themselves.
            kept = [[] for _ in range(100_000)]
            assert seen() is not None and kept
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
    gc.collect()
    assert seen() is None


def test_collection_goes_on_after_a_capture_that_failed():
    with pytest.raises(RuntimeError), nothing_collected():
        raise RuntimeError
    assert gc.isenabled()
