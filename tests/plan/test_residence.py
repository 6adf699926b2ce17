"""The policy that says what lives where, against its promises for any sizes and wishes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan import NoRoomError, Sizes, Wanted, decide_residence
from penstock.plan.residence import cache_bytes, pinnable, usable
from refusals import refused

GB = 10**9
PLACES = ("device", "pinned", "host")
PAPERS = Sizes(13_800_000_000, 28_400_000_000, 256, 111_000_000, 4 * GB, 140 * GB, 150 * GB, 100 * GB)


@st.composite
def all_sizes(draw):
    rows = draw(st.integers(1, 10_000))
    row_bytes = draw(st.integers(1, 400))
    gpus = draw(st.sampled_from((1, 1, 2, 8)))
    total = draw(st.integers(0, 6_000_000))
    return Sizes(
        draw(st.integers(0, 2_000_000)),
        rows * row_bytes,
        row_bytes,
        rows,
        draw(st.integers(0, 1_000_000)),
        draw(st.integers(0, total)),
        total,
        draw(st.integers(0, 6_000_000)),
        gpus=gpus,
        share_bytes=-(-rows * row_bytes // gpus),
        all_fit=draw(st.booleans()),
    )


@st.composite
def cases(draw):
    sizes = draw(all_sizes())
    choices = ("auto", *PLACES)
    of_features = (*choices, "sharded") if sizes.gpus > 1 else choices
    cache = draw(st.none() | st.integers(0, sizes.rows))
    wishes = draw(st.sampled_from(choices)), draw(st.sampled_from(of_features))
    return sizes, Wanted(*wishes, cache, draw(st.sampled_from((0.5, 0.9, 1.0))))


@settings(max_examples=2 * settings.default.max_examples)
@given(cases())
def test_what_is_chosen_fits_and_is_what_was_asked_for(case):
    sizes, wanted = case
    try:
        chosen = decide_residence(sizes, wanted)
    except NoRoomError:
        return
    device = sizes.working_bytes + cache_bytes(sizes, chosen.cache_rows)
    pinned = 0
    features = sizes.share_bytes if chosen.shared else sizes.feature_bytes
    for place, size in ((chosen.topology, sizes.topology_bytes), (chosen.features, features)):
        device += size if place == "device" else 0
        pinned += size if place == "pinned" else 0
    assert (chosen.device_bytes, chosen.pinned_bytes) == (device, pinned)
    assert device <= usable(sizes, wanted.share) <= sizes.device_free
    assert pinned <= pinnable(sizes) <= sizes.host_free
    assert wanted.topology in ("auto", chosen.topology)
    assert wanted.features in ("auto", _place_of_features(chosen))
    assert sizes.all_fit or sizes.gpus == 1 or _place_of_features(chosen) != "device" or wanted.features == "device"
    assert wanted.cache_rows in (None, chosen.cache_rows)
    assert chosen.features == "pinned" or chosen.cache_rows == 0
    assert len(chosen.why) == (3 if chosen.features == "pinned" else 2)
    assert all(sentence.endswith(".") for sentence in chosen.why)


@settings(max_examples=2 * settings.default.max_examples)
@given(cases())
def test_advice_that_is_followed_is_accepted(case):
    sizes, wanted = case
    try:
        decide_residence(sizes, wanted)
    except NoRoomError as error:
        if sizes.working_bytes > usable(sizes, wanted.share):
            assert "batch_size" in str(error) and not error.would_fit
            smaller = replace(sizes, working_bytes=usable(sizes, wanted.share))
            assert decide_residence(smaller, Wanted(share=wanted.share)).device_bytes >= smaller.working_bytes
            return
        assert error.would_fit
        for other in error.would_fit:
            found = decide_residence(sizes, other)
            if other.cache_rows:
                assert f"{other.cache_rows:,}" in str(error) or other.cache_rows == wanted.cache_rows
            assert found.device_bytes <= usable(sizes, wanted.share)


@settings(max_examples=2 * settings.default.max_examples)
@given(cases(), st.integers(0, 2_000_000), st.integers(0, 2_000_000))
def test_more_memory_never_gives_a_worse_place(case, device_more, host_more):
    sizes, wanted = case
    try:
        before = decide_residence(sizes, wanted)
    except NoRoomError:
        return
    # The same device with less of it taken, or a larger one; and a host with more to pin.
    free = replace(sizes, device_free=min(sizes.device_total, sizes.device_free + device_more))
    larger = replace(sizes, device_free=sizes.device_free + device_more, device_total=sizes.device_total + device_more)
    roomy = replace(free, host_free=sizes.host_free + host_more)
    for more in (free, larger, roomy):
        assert _rank(decide_residence(more, wanted)) >= _rank(before)


def _place_of_features(chosen):
    return "sharded" if chosen.shared else chosen.features


def _rank(chosen):
    """The topology's place counts before the features', and theirs before the cache."""
    of_features = ("device", "sharded", "pinned", "host").index(_place_of_features(chosen))
    return -PLACES.index(chosen.topology), -of_features, chosen.cache_rows


def test_gpus_that_hold_the_features_together():
    """Where all have room for all of them none is shared, unless that is asked for; then what one has counts."""
    four = replace(PAPERS, gpus=4, share_bytes=PAPERS.feature_bytes // 4, device_free=38 * GB, device_total=40 * GB)
    shared = decide_residence(four, Wanted())
    assert (shared.topology, shared.features, shared.shared) == ("device", "device", True)
    assert shared.device_bytes == PAPERS.working_bytes + PAPERS.topology_bytes + PAPERS.feature_bytes // 4
    assert shared.why[1] == (
        "The features (28.4 GB) are on 4 GPUs, 7.1 GB on each, which read each other's memory: as not every GPU has"
        " room for all of them."
    )
    large = replace(four, device_free=140 * GB, device_total=150 * GB)
    assert not decide_residence(large, Wanted()).shared
    assert decide_residence(replace(large, all_fit=False), Wanted()).shared
    asked = decide_residence(large, Wanted(features="sharded"))
    assert asked.shared and asked.why[1].endswith("as asked.")
    small = replace(four, device_free=26 * GB)
    assert decide_residence(small, Wanted()).features == "pinned"
    with refused("out-of-memory share 7.1 pinned", NoRoomError):
        decide_residence(small, Wanted(topology="device", features="sharded"))
    with refused("unsupported-combination sharded gpus"):
        decide_residence(PAPERS, Wanted(features="sharded"))


def test_a_large_graph_on_devices_of_several_sizes():
    whole = decide_residence(PAPERS, Wanted())
    assert (whole.topology, whole.features, whole.cache_rows) == ("device", "device", 0)
    assert whole.device_bytes == PAPERS.working_bytes + PAPERS.topology_bytes + PAPERS.feature_bytes

    part = decide_residence(replace(PAPERS, device_free=38 * GB, device_total=40 * GB), Wanted())
    assert (part.topology, part.features) == ("device", "pinned")
    # 38 GB less a tenth of 40, training, topology, slots, and a twentieth of training's memory.
    left = 38 * GB - 4 * GB - 4 * GB - PAPERS.topology_bytes - 111_000_000 * 4 - 16 - GB // 5
    assert part.cache_rows == left // 256
    assert part.why[1] == (
        "The features (28.4 GB) stay in pinned host memory: beside training (4.0 GB) and the topology (13.8 GB) they "
        "would exceed the 34.0 GB that may be used by 12.2 GB."
    )

    small = replace(PAPERS, device_free=10 * GB, device_total=11 * GB)
    assert decide_residence(small, Wanted()).topology == "pinned"
    poor = decide_residence(replace(small, host_free=20 * GB), Wanted())
    assert (poor.topology, poor.features, poor.cache_rows) == ("pinned", "host", 0)
    assert "only 4.2 GB can be pinned" in poor.why[1]
    poorest = decide_residence(replace(small, host_free=GB), Wanted())
    assert (poorest.topology, poorest.features, poorest.pinned_bytes) == ("host", "host", 0)


def test_refusals_say_by_how_much_and_what_would_fit():
    small = replace(PAPERS, device_free=38 * GB, device_total=40 * GB)
    with pytest.raises(NoRoomError) as refusal:
        decide_residence(small, Wanted(topology="device", features="device"))
    assert str(refusal.value) == (
        "Training (4.0 GB), the topology (13.8 GB) and the features (28.4 GB) would take 12.2 GB more than the 34.0 GB "
        "of device memory that may be used: set features to pinned, or topology to pinned."
    )
    with refused("out-of-memory cache_rows 61,546,874", NoRoomError):
        decide_residence(small, Wanted("device", "pinned", 100_000_000))
    with refused("out-of-memory 4.0 1.1 2.9 batch_size", NoRoomError):
        decide_residence(replace(PAPERS, device_free=4 * GB, device_total=11 * GB), Wanted())
    with refused("out-of-memory", NoRoomError):
        decide_residence(replace(PAPERS, host_free=GB), Wanted(features="pinned"))
    with refused("out-of-memory", NoRoomError):
        decide_residence(PAPERS, Wanted(features="device", cache_rows=5))


def test_a_cache_that_is_asked_for_stands_before_pinned_features():
    chosen = decide_residence(PAPERS, Wanted(cache_rows=5))
    assert (chosen.features, chosen.cache_rows) == ("pinned", 5)
    none = decide_residence(PAPERS, Wanted(features="pinned", cache_rows=0))
    assert (none.features, none.cache_rows) == ("pinned", 0)


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        (Wanted(share=0.0), "value-out-of-range 0 1"),
        (Wanted(topology="disk"), "unknown-name disk"),
        (Wanted(cache_rows=-1), "value-out-of-range cache_rows -1"),
        (Wanted(cache_rows=111_000_001), "value-out-of-range 0 111,000,000"),
    ],
)
def test_wishes_that_mean_nothing_are_refused(wanted, complaint):
    with refused(complaint):
        decide_residence(PAPERS, wanted)


def test_bounds_of_pinned_lists_are_on_the_device():
    sizes = Sizes(100, 0, 0, 0, 10, 60, 60, 1000, bounds_bytes=20)
    found = decide_residence(sizes, Wanted(share=1.0))
    assert found.topology == "pinned" and (found.device_bytes, found.pinned_bytes) == (30, 80)
    tight = decide_residence(Sizes(100, 0, 0, 0, 50, 60, 60, 1000, bounds_bytes=20), Wanted(share=1.0))
    assert tight.topology == "host" and tight.device_bytes == 50
