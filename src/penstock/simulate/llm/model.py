"""The shape of a transformer, how it is spread over GPUs, and which GPUs are simulated for all that do the same."""

from dataclasses import dataclass, replace
from math import lcm
from typing import NamedTuple

from penstock.errors import PenstockError, nearest

# The shape of a transformer, and what follows from it: parameters and arithmetic of a layer. `preset` gives models by
# name: as they were published, and as Hermod simulated them.


def unfit(sentence: str) -> PenstockError:
    """The error about sizes or settings that do not go together."""
    return PenstockError(sentence, code="unsupported-combination")


@dataclass(frozen=True)
class Model:
    """A decoder of equal layers, dense or with experts in every layer."""

    layers: int
    hidden: int
    heads: int
    sequence: int  # tokens
    feed_forward: int  # width of the dense feed-forward part, or of one expert
    matrices: int = 2  # of a feed-forward part: 2, or 3 where it is gated
    key_value_heads: int = 0  # 0: as many as heads
    experts: int = 0  # 0: dense
    top_k: int = 0  # experts a token goes to
    shared: int = 0  # width of a feed-forward part that every token passes beside its experts
    vocabulary: int = 0  # 0: no embedding, no head

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "sequence", "feed_forward"):
            if getattr(self, name) < 1:
                raise PenstockError(
                    f"A model has {getattr(self, name)} {name}: give at least 1.", code="value-out-of-range"
                )
        if self.hidden % self.heads:
            raise unfit(f"hidden={self.hidden} is not divisible by heads={self.heads}.")
        if self.heads % (self.key_value_heads or self.heads):
            raise unfit(f"heads={self.heads} is not divisible by key_value_heads={self.key_value_heads}.")
        if bool(self.experts) != bool(self.top_k) or self.top_k > self.experts:
            raise PenstockError(
                f"experts={self.experts} does not go with top_k={self.top_k}: give a top_k from 1 to experts, or leave"
                " out both.",
                code="value-out-of-range",
            )

    @property
    def attention_parameters(self) -> int:
        """The number of attention parameters of one layer."""
        return 2 * self.hidden * self.hidden + 2 * self.hidden * self._key_value_width

    @property
    def expert_parameters(self) -> int:
        """The number of parameters of all experts of one layer; 0 for a dense model."""
        return self.experts * self.matrices * self.hidden * self.feed_forward

    @property
    def shared_parameters(self) -> int:
        """Of one layer, apart from its experts: attention, the dense feed-forward part, and the gate."""
        wide = self.shared if self.experts else self.feed_forward
        return self.attention_parameters + self.matrices * self.hidden * wide + self.hidden * self.experts

    @property
    def parameters(self) -> int:
        """The number of parameters of the whole model, embedding and head included."""
        return self.layers * (self.shared_parameters + self.expert_parameters) + 2 * self.vocabulary * self.hidden

    def attention_flops(self, tokens: int) -> float:
        """Operations of one layer's forward pass up to the experts: projections, scores, the gate, and shared parts."""
        scores = 4.0 * tokens * self.sequence * self.hidden
        beside = self.matrices * self.hidden * self.shared if self.experts else 0
        return 2.0 * tokens * (self.attention_parameters + self.hidden * self.experts + beside) + scores

    def feed_forward_flops(self, tokens: int) -> float:
        """Operations of one layer's forward pass through its feed-forward part, or through the
        experts of its tokens.
        """
        return 2.0 * tokens * max(1, self.top_k) * self.matrices * self.hidden * self.feed_forward

    def head_flops(self, tokens: int) -> float:
        """Floating-point operations of the forward pass from the last layer to the vocabulary."""
        return 2.0 * tokens * self.hidden * self.vocabulary

    @property
    def _key_value_width(self) -> int:
        return self.hidden // self.heads * (self.key_value_heads or self.heads)


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
    "mixtral-8x22b-32l": replace(_MIXTRAL_22B, layers=32),  # Hermod's
    "qwen1.5-moe": _QWEN_MOE,
    "qwen-moe-24l": replace(_QWEN_MOE, experts=64),  # Hermod's
    "qwen-moe-12l": replace(_QWEN_MOE, experts=64, layers=12),  # Hermod's, on its testbed
}


def preset(name: str) -> Model:
    """The model of that name."""
    if name not in PRESETS:
        raise PenstockError(f"No model is called {name!r}{nearest(name, PRESETS)}", code="unknown-name")
    return PRESETS[name]


# How a model is parallelised over GPUs, and which GPUs are simulated on behalf of all that do the same. GPUs are
# numbered as in Megatron: tensor ranks first, then data ranks, then stages; the expert groups are neighbouring data
# ranks. The GPUs of one tensor group always send and compute alike and are one *device*. Data ranks do the same work on
# other tokens. Where not all are asked for, the first `replicas` represent all: as many as fill whole expert groups and
# whole servers. A ring over all data ranks then continues from the last of them into the fabric, from where the same
# traffic reaches the first. Where the data ranks are no multiple of that number, servers hold different stages and
# expert groups lie differently in them: then none can represent others, and all are simulated. A stage works in the
# order of one forward, one backward pass (1F1B), plain or interleaved (`order_of`).


@dataclass(frozen=True)
class Parallelism:
    """Degrees of parallelism, and the microbatches of a step."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1  # of the data ranks
    microbatches: int = 1  # of every data rank in a step
    microbatch_size: int = 1  # sequences
    interleave: int = 1  # chunks of layers a stage has
    sequence_parallel: bool = True  # what passes between stages is cut over the tensor ranks

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data", "expert", "microbatches", "microbatch_size", "interleave"):
            if getattr(self, name) < 1:
                raise PenstockError(
                    f"The degree {name} is {getattr(self, name)}: give at least 1.", code="value-out-of-range"
                )
        if self.data % self.expert:
            raise unfit(f"data={self.data} is not divisible by expert={self.expert}.")
        if self.interleave > 1 and (self.microbatches % self.pipeline or self.pipeline == 1):
            raise unfit(
                f"Interleaving needs pipeline above 1 and microbatches={self.microbatches} divisible by"
                f" pipeline={self.pipeline}."
            )

    @property
    def gpus(self) -> int:
        """The number of GPUs that the job uses."""
        return self.tensor * self.pipeline * self.data

    @property
    def chunks(self) -> int:
        """Pieces of the model, in the order in which a microbatch passes them: chunk c is on stage c % pipeline."""
        return self.pipeline * self.interleave

    def layers_of(self, chunk: int, model: Model) -> range:
        """The layers of a chunk."""
        each = model.layers // self.chunks
        return range(chunk * each, (chunk + 1) * each)

    def check(self, model: Model, server_gpus: int) -> None:
        """Refuse degrees that do not divide the model or the servers."""
        if model.layers % self.chunks:
            raise unfit(f"layers={model.layers} is not divisible by pipeline x interleave = {self.chunks}.")
        if self.tensor > server_gpus or server_gpus % self.tensor:
            raise unfit(f"The servers' {server_gpus} GPUs are not divisible by tensor={self.tensor}.")
        if self.expert > 1 and (not model.experts or model.experts % self.expert):
            raise unfit(
                f"experts={model.experts} is not divisible by expert={self.expert}; for a dense model set expert to 1."
            )

    def replicas(self, server_gpus: int, everything: bool) -> int:
        """Data ranks that are simulated."""
        alike = self.alike(server_gpus)
        return self.data if everything or self.data % alike else alike

    def alike(self, server_gpus: int) -> int:
        """Data ranks that fill whole expert groups and whole servers."""
        return lcm(self.expert, server_gpus // self.tensor)


class Work(NamedTuple):
    """One pass of one microbatch through one of a stage's chunks."""

    forward: bool
    chunk: int  # among the stage's own
    microbatch: int


def order_of(stage: int, stages: int, microbatches: int, interleave: int = 1) -> list[Work]:
    """The work of a stage in a step: forward passes until the first returns, then one of each, then the rest."""
    total = microbatches * interleave
    if interleave == 1:
        warm = min(stages - stage - 1, total)
    elif microbatches == stages:
        # The first microbatch returns after it has passed all stages.
        warm = total
    else:
        warm = min(2 * (stages - stage - 1) + (interleave - 1) * stages, total)
    forward = [_pass(k, True, stages, interleave) for k in range(total)]
    backward = [_pass(k, False, stages, interleave) for k in range(total)]
    steady = [each for k in range(total - warm) for each in (forward[warm + k], backward[k])]
    return forward[:warm] + steady + backward[total - warm :]


def _pass(k: int, forward: bool, stages: int, interleave: int) -> Work:
    """A stage's k-th pass in one direction: rounds of as many microbatches as there are stages, chunk after chunk."""
    chunk = k // stages % interleave
    microbatch = k // (stages * interleave) * stages + k % stages if interleave > 1 else k
    return Work(forward, chunk if forward else interleave - 1 - chunk, microbatch)
