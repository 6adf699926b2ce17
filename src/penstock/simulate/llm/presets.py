"""Models by name: as they were published, and as the source of the coflow policies simulated them."""

from dataclasses import replace

from penstock.errors import PenstockError, nearest
from penstock.simulate.llm.model import Model

_GPT3_13B = Model(layers=40, hidden=5120, heads=40, sequence=2048, feed_forward=4 * 5120, vocabulary=50257)
_GPT3_175B = Model(layers=96, hidden=12288, heads=96, sequence=2048, feed_forward=4 * 12288, vocabulary=50257)
_MIXTRAL_7B = Model(
    layers=32, hidden=4096, heads=32, sequence=4096, feed_forward=14336, matrices=3, key_value_heads=8, experts=8,
    top_k=2, vocabulary=32000,
)  # fmt: skip
_MIXTRAL_22B = Model(
    layers=56, hidden=6144, heads=48, sequence=4096, feed_forward=16384, matrices=3, key_value_heads=8, experts=8,
    top_k=2, vocabulary=32768,
)  # fmt: skip
_QWEN_MOE = Model(
    layers=24, hidden=2048, heads=16, sequence=4096, feed_forward=1408, matrices=3, experts=60, top_k=4, shared=5632,
    vocabulary=151936,
)  # fmt: skip

PRESETS = {
    "gpt3-13b": _GPT3_13B,
    "gpt3-175b": _GPT3_175B,
    "mixtral-8x7b": _MIXTRAL_7B,
    "mixtral-8x22b": _MIXTRAL_22B,
    "mixtral-8x22b-32l": replace(_MIXTRAL_22B, layers=32),  # the source's
    "qwen1.5-moe": _QWEN_MOE,
    "qwen-moe-24l": replace(_QWEN_MOE, experts=64),  # the source's
    "qwen-moe-12l": replace(_QWEN_MOE, experts=64, layers=12),  # the source's, on its testbed
}


def preset(name: str) -> Model:
    """The model of that name."""
    if name not in PRESETS:
        raise PenstockError(f"No model is called {name!r}{nearest(name, PRESETS)}", code="unknown-name")
    return PRESETS[name]
