"""Seconds and bytes of a device, which is all GPUs of a tensor group together: what one sends, all of them do."""

from penstock.simulate.llm.job import LlmJob

_HALF = 2
"""Bytes of an activation (bfloat16)."""


class Costs:
    """Seconds and bytes of one job's parts."""

    def __init__(self, job: LlmJob) -> None:
        model, compute, parallel = job.model, job.compute, job.parallel
        self._job, self._tokens = job, model.sequence * parallel.microbatch_size
        self._rate = parallel.tensor * compute.tflops * 1e12 * compute.efficiency
        self._tensor = self._tensor_seconds()
        attention = self._seconds(compute.attention_ms, model.attention_flops(self._tokens))
        self._attention = attention + compute.gate_ms / 1e3
        self._feed_forward = self._seconds(compute.feed_forward_ms, model.feed_forward_flops(self._tokens))
        self._head = model.head_flops(self._tokens) / self._rate
        passed = _HALF * self._tokens * model.hidden
        self.between_stages = passed if parallel.sequence_parallel else passed * parallel.tensor
        """Bytes from stage to stage."""
        self.to_experts = passed * model.top_k
        """Bytes of tokens that a device sends in one all-to-all, to itself too."""

    def attention(self, forward: bool) -> float:
        """Seconds of a layer's pass up to its feed-forward part."""
        return self._whole(self._attention, forward)

    def feed_forward(self, forward: bool) -> float:
        """Seconds of the feed-forward part's."""
        return self._whole(self._feed_forward, forward)

    def head(self, forward: bool) -> float:
        """Seconds of the pass after the last layer."""
        return self._head * (1.0 if forward else self._job.compute.backward)

    def reduced(self, layers: range, last: int) -> tuple[float, float]:
        """Parameters of some layers as far as a ring of all data ranks moves them, and as far as a ring of those with
        the same experts does. `last` is the model's last layer: the first and last hold the words' embeddings."""
        model, parallel = self._job.model, self._job.parallel
        ends = sum(1 for layer in layers if layer == 0) + sum(1 for layer in layers if layer == last)
        shared = len(layers) * model.shared_parameters + ends * model.vocabulary * model.hidden
        experts = len(layers) * model.expert_parameters / parallel.expert
        return shared * self._moved(parallel.data), experts * self._moved(parallel.data // parallel.expert)

    def _moved(self, ranks: int) -> float:
        """What part of the data a rank sends in a reduce-scatter, or in an all-gather."""
        if ranks == 1:
            return 0.0
        return (ranks - 1) / ranks if self._job.reduction.shape == "ring" else 1.0

    def _whole(self, seconds: float, forward: bool) -> float:
        """With what tensor ranks exchange: as much backward as forward, and again where activations are computed again,
        which `backward` counts as one forward pass more than 2."""
        times = self._job.compute.backward
        return seconds + self._tensor if forward else seconds * times + self._tensor * max(1.0, times - 1)

    def _seconds(self, given_ms: float | None, flops: float) -> float:
        return flops / self._rate if given_ms is None else given_ms / 1e3

    def _tensor_seconds(self) -> float:
        """An all-reduce among the GPUs of a device, over NVLink."""
        tensor = self._job.parallel.tensor
        size = _HALF * self._tokens * self._job.model.hidden
        return 2 * (tensor - 1) / tensor * size / (self._job.servers.nvlink_gbps * 1e9 / 8)
