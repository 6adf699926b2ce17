"""Where topology and features are placed (`placement: auto`). Sizes are in bytes; nothing is allocated here.

What training itself needs comes first, then what was asked for by name. Of the rest the topology comes first, as
sampling from pinned memory is many small reads over the bus; then the features if all of them fit, else a share of them
where the GPUs of a host can hold them together, else pinned memory with a cache of the most-read rows in what is left
of the device; and if the host has no room to pin, the host reads its own copy.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from penstock.errors import PenstockError

Place = Literal["device", "pinned", "host"]
FeaturePlace = Literal["device", "sharded", "pinned", "host"]
Choice = Literal["auto", "device", "pinned", "host"]

_PLACES: tuple[Place, ...] = ("device", "pinned", "host")
_OF_FEATURES: tuple[FeaturePlace, ...] = ("device", "sharded", "pinned", "host")
_SLOT_BYTES = 4
"""Bytes per row of the table for its cache slot on the device, whether cached or not."""
_TALLY_BYTES = 16
"""Bytes of the counters of hits and reads."""
_PINNED_SHARE = 0.9
"""The share of the host's free memory that may be pinned: locked pages cannot be reclaimed."""
_SPARE_OF_WORKING = 20
"""An automatic cache leaves one in this many parts of the working memory free, for errors of the prediction."""
_SMALLEST_CACHE = 1000
"""A cache of fewer than one in this many rows is not worth checking its slots for every row read."""


@dataclass(frozen=True)
class Sizes:
    """What is to be placed, and the available memory."""

    topology_bytes: int
    feature_bytes: int
    feature_row_bytes: int
    rows: int
    working_bytes: int
    """Predicted memory of training on the device beside the graph: weights, batches, activations."""
    device_free: int
    device_total: int
    host_free: int
    """Host memory that can be pinned beside what is mapped."""
    bounds_bytes: int = 0
    """Bytes of the list offsets: they are on the device even where the lists are pinned, as draws
    read them randomly.
    """
    gpus: int = 1
    """How many GPUs of the host may hold the features together, each a share."""
    share_bytes: int = 0
    """Bytes of a share of the features."""
    all_fit: bool = True
    """Whether the other GPUs have room for all features if this one has; else no GPU holds all of them."""


@dataclass(frozen=True)
class Wanted:
    """The placement that was asked for; `auto` (or None) leaves the choice to Penstock."""

    topology: Choice = "auto"
    features: Choice | Literal["sharded"] = "auto"
    cache_rows: int | None = None
    share: float = 0.9
    """The share of the device's memory that may be in use at the end, by this and other processes."""


@dataclass(frozen=True)
class Residence:
    """The choice, its memory (on the device with the working memory) and the reasons, one sentence each."""

    topology: Place
    features: Place
    cache_rows: int
    device_bytes: int
    pinned_bytes: int
    why: list[str]
    shared: bool = False
    """Whether the features on the device are a share, and the others are on the other GPUs of the host."""


class NoRoomError(PenstockError):
    """Raised for a placement that does not fit; `would_fit` are the changed settings that the message names."""

    def __init__(self, message: str, would_fit: list[Wanted]) -> None:
        super().__init__(message, code="out-of-memory")
        self.would_fit = would_fit


def decide_residence(sizes: Sizes, wanted: Wanted) -> Residence:
    """Where topology and features go; `NoRoomError` with alternatives where they do not fit."""
    _check(sizes, wanted)
    if problem := _problem(sizes, wanted):
        raise _refusal(sizes, wanted, problem)
    topology = _place_topology(sizes, wanted)
    settled = replace(wanted, topology=topology)
    features = _place_features(sizes, settled)
    settled = replace(settled, features=features)
    cache = _cache_rows(sizes, settled)
    settled = replace(settled, cache_rows=cache)
    device, pinned = _needs(sizes, settled)
    why = [
        _why_topology(sizes, wanted, topology),
        _why_features(sizes, wanted, topology, features),
        *_why_cache(sizes, wanted, features, cache),
    ]
    if features == "sharded":
        return Residence(topology, "device", cache, device, pinned, why, shared=True)
    return Residence(topology, features, cache, device, pinned, why)


def usable(sizes: Sizes, share: float) -> int:
    """Bytes of the device that may still be taken: what is free, less the part that must stay free."""
    return max(0, sizes.device_free - int(sizes.device_total * (1 - share)))


def pinnable(sizes: Sizes) -> int:
    """What may be pinned of the host's memory."""
    return int(sizes.host_free * _PINNED_SHARE)


def cache_bytes(sizes: Sizes, rows: int) -> int:
    """Bytes of a cache of so many rows on the device."""
    return rows * sizes.feature_row_bytes + sizes.rows * _SLOT_BYTES + _TALLY_BYTES if rows else 0


def _check(sizes: Sizes, wanted: Wanted) -> None:
    if not 0 < wanted.share <= 1:
        raise PenstockError(
            f"The share of device memory to use is {wanted.share}: give more than 0, at most 1.",
            code="value-out-of-range",
        )
    if wanted.features == "sharded" and sizes.gpus == 1:
        raise PenstockError(
            "The features cannot be sharded over one GPU: train with gpus of 2 or more, or set features to auto.",
            code="unsupported-combination",
        )
    for name, value, places in (("topology", wanted.topology, _PLACES), ("features", wanted.features, _OF_FEATURES)):
        if value not in ("auto", *places):
            raise PenstockError(
                f"{name} cannot be placed on {value!r}: choose auto, {', '.join(places[:-1])} or {places[-1]}.",
                code="unknown-name",
            )
    if wanted.cache_rows is not None and not 0 <= wanted.cache_rows <= sizes.rows:
        raise PenstockError(
            f"cache_rows is {wanted.cache_rows:,} of {sizes.rows:,} rows: give 0 to {sizes.rows:,}.",
            code="value-out-of-range",
        )


# What was asked for by name, and whether it fits.


def _asked_features(wanted: Wanted) -> Choice | Literal["sharded"]:
    """The place of features; a requested cache implies a pinned table."""
    return "pinned" if wanted.features == "auto" and wanted.cache_rows else wanted.features


def _needs(sizes: Sizes, wanted: Wanted) -> tuple[int, int]:
    """Bytes on the device and pinned for the working memory and all that is named."""
    features = _asked_features(wanted)
    device = sizes.working_bytes + cache_bytes(sizes, wanted.cache_rows or 0)
    device += sizes.topology_bytes * (wanted.topology == "device") + sizes.feature_bytes * (features == "device")
    device += sizes.share_bytes * (features == "sharded")
    pinned = sizes.feature_bytes * (features == "pinned")
    if wanted.topology == "pinned":
        device, pinned = device + sizes.bounds_bytes, pinned + sizes.topology_bytes - sizes.bounds_bytes
    return device, pinned


def _room(sizes: Sizes, wanted: Wanted) -> tuple[int, int]:
    """Bytes left on the device and to pin, beside what is named. Negative: it does not fit."""
    device, pinned = _needs(sizes, wanted)
    return usable(sizes, wanted.share) - device, pinnable(sizes) - pinned


def _problem(sizes: Sizes, wanted: Wanted) -> str | None:
    """Why the named choices are not possible, as the beginning of a sentence; None where they are."""
    device_left, pinned_left = _room(sizes, wanted)
    if wanted.cache_rows and wanted.features in ("device", "sharded", "host"):
        return (
            f"cache_rows is {wanted.cache_rows:,}, but only features in pinned memory have a cache and these are to be "
            f"{_AT[wanted.features]}"
        )
    if device_left < 0:
        return (
            f"{_listed(sizes, wanted, 'device')} would take {_size(-device_left)} more than the "
            f"{_size(usable(sizes, wanted.share))} of device memory that may be used"
        )
    if pinned_left < 0:
        return (
            f"{_listed(sizes, wanted, 'pinned')} would take {_size(-pinned_left)} more than the "
            f"{_size(pinnable(sizes))} of host memory that can be pinned"
        )
    return None


def _refusal(sizes: Sizes, wanted: Wanted, problem: str) -> NoRoomError:
    room = usable(sizes, wanted.share)
    if sizes.working_bytes > room:
        return NoRoomError(
            f"Training needs {_size(sizes.working_bytes)} on the device, {_size(sizes.working_bytes - room)} more than"
            f" the {_size(room)} that may be used, even with the graph on the host: lower batch_size or fanouts.",
            [],
        )
    fitting: dict[str, tuple[str, Wanted]] = {}
    for field, value, other in _changes(sizes, wanted):
        if field not in fitting and _problem(sizes, other) is None:
            fitting[field] = (f"{field} to {value}", other)
    if not fitting:
        # Left to choose, whatever has no room elsewhere stays on the host.
        fitting["all"] = ("topology, features and cache_rows to auto", Wanted(share=wanted.share))
    advice = ", or ".join(text for text, _ in fitting.values())
    return NoRoomError(f"{problem[0].upper()}{problem[1:]}: set {advice}.", [other for _, other in fitting.values()])


def _changes(sizes: Sizes, wanted: Wanted) -> Iterator[tuple[str, str, Wanted]]:
    """Settings with one field changed (which, to what), in the order in which they are worth trying; not all fit."""
    for place in _OF_FEATURES:
        if wanted.features not in ("auto", place) and (place != "sharded" or sizes.gpus > 1):
            yield "features", place, replace(wanted, features=place)
    if wanted.cache_rows:
        without = replace(wanted, cache_rows=0)
        fewer = replace(wanted, cache_rows=min(_largest_cache(sizes, without), wanted.cache_rows - 1))
        if fewer.cache_rows and _problem(sizes, fewer) is None:
            yield "cache_rows", f"at most {fewer.cache_rows:,}", fewer
        else:
            yield "cache_rows", "0", without
    for place in _PLACES:
        if wanted.topology not in ("auto", place):
            yield "topology", place, replace(wanted, topology=place)


# The choices that are left open.


def _place_topology(sizes: Sizes, wanted: Wanted) -> Place:
    if wanted.topology != "auto":
        return wanted.topology
    device_left, pinned_left = _room(sizes, wanted)
    # Lists are not pinned if their offsets do not fit on the device.
    pinned_left = pinned_left + sizes.bounds_bytes if sizes.bounds_bytes <= device_left else -1
    return _first_with_room(sizes.topology_bytes, device_left, pinned_left)


def _place_features(sizes: Sizes, wanted: Wanted) -> FeaturePlace:
    features = _asked_features(wanted)
    if features != "auto":
        return features
    device_left, pinned_left = _room(sizes, wanted)
    fit = sizes.all_fit and sizes.feature_bytes <= device_left
    if sizes.gpus > 1 and not fit and sizes.share_bytes <= device_left:
        return "sharded"
    return _first_with_room(sizes.feature_bytes, device_left, pinned_left)


def _first_with_room(size: int, device_left: int, pinned_left: int) -> Place:
    if size <= device_left:
        return "device"
    return "pinned" if size <= pinned_left else "host"


def _cache_rows(sizes: Sizes, settled: Wanted) -> int:
    if settled.cache_rows is not None or settled.features != "pinned":
        return settled.cache_rows or 0
    rows = _largest_cache(sizes, settled, sizes.working_bytes // _SPARE_OF_WORKING)
    return rows if rows * _SMALLEST_CACHE >= sizes.rows else 0


def _largest_cache(sizes: Sizes, wanted: Wanted, spare: int = 0) -> int:
    """How many rows would fit in what the device has left but for `spare`."""
    left = _room(sizes, wanted)[0] - spare - cache_bytes(sizes, 1) + sizes.feature_row_bytes
    return max(0, min(sizes.rows, left // max(1, sizes.feature_row_bytes)))


# The reasons.


def _why_topology(sizes: Sizes, wanted: Wanted, topology: Place) -> str:
    size = _size(sizes.topology_bytes)
    if wanted.topology != "auto":
        return f"The topology ({size}) is {_AT[topology]}, as asked."
    if topology == "device":
        return f"The topology ({size}) is on the device: it fits beside the {_size(sizes.working_bytes)} of training."
    free = f"{_size(_room(sizes, wanted)[0])} that are left on the device"
    if topology == "pinned":
        return f"The topology ({size}) stays in pinned host memory: it would exceed the {free}."
    return (
        f"The topology ({size}) stays on the host, which samples: it would exceed the {free}, and the "
        f"{_size(_room(sizes, wanted)[1])} that can be pinned."
    )


def _why_features(sizes: Sizes, wanted: Wanted, topology: Place, features: FeaturePlace) -> str:
    size = _size(sizes.feature_bytes)
    if features == "sharded":
        because = "as asked" if wanted.features == "sharded" else "as not every GPU has room for all of them"
        return (
            f"The features ({size}) are on {sizes.gpus} GPUs, {_size(sizes.share_bytes)} on each, which read each"
            f" other's memory: {because}."
        )
    if wanted.features != "auto":
        return f"The features ({size}) are {_AT[features]}, as asked."
    if wanted.cache_rows:
        return f"The features ({size}) are {_AT['pinned']}, behind the cache that was asked for."
    settled = replace(wanted, topology=topology)
    device_left, pinned_left = _room(sizes, settled)
    beside = f"beside {_listed(sizes, settled, 'device')}"
    if features == "device":
        return f"The features ({size}) are on the device: all of them fit {beside}."
    exceed = f"{beside} they would exceed the {_size(usable(sizes, wanted.share))} that may be used by "
    exceed += _size(sizes.feature_bytes - device_left)
    if features == "pinned":
        return f"The features ({size}) stay in pinned host memory: {exceed}."
    return f"The features ({size}) stay on the host: {exceed}, and only {_size(pinned_left)} can be pinned."


def _why_cache(sizes: Sizes, wanted: Wanted, features: FeaturePlace, cache: int) -> Iterator[str]:
    if features != "pinned":
        return
    if wanted.cache_rows is not None:
        yield f"The cache on the device has {cache:,} of {sizes.rows:,} rows, as asked."
    elif cache:
        yield (
            f"The cache on the device has the hottest {cache:,} of {sizes.rows:,} rows "
            f"({_size(cache_bytes(sizes, cache))}): what is left there."
        )
    else:
        yield "There is no cache on the device: what is left there is too little to be worth it."


_AT = {
    "device": "on the device",
    "sharded": "on several GPUs",
    "pinned": "in pinned host memory",
    "host": "on the host",
}


def _listed(sizes: Sizes, wanted: Wanted, place: Place) -> str:
    """All that is named for a place, with sizes."""
    parts = []
    if place == "device":
        parts.append(f"training ({_size(sizes.working_bytes)})")
    if wanted.topology == place:
        parts.append(f"the topology ({_size(sizes.topology_bytes)})")
    if _asked_features(wanted) == place:
        parts.append(f"the features ({_size(sizes.feature_bytes)})")
    if place == "device" and wanted.features == "sharded":
        parts.append(f"a share of the features ({_size(sizes.share_bytes)})")
    if place == "device" and wanted.cache_rows:
        parts.append(f"a cache of {wanted.cache_rows:,} rows ({_size(cache_bytes(sizes, wanted.cache_rows))})")
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _size(size: int) -> str:
    """A size with about three digits."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size} bytes"
