"""The layers' mechanism on a GPU, in Triton: what `aggregation`, `attention` and `drop` do for a `DeviceBlock`.

`lists` are a block's lists as kernels walk them, `gather` launches what `gather_kernels` do and `aggregation` makes it
differentiable; `attention` and `drop` have kernels of their own. `rows` are features that are read where they lie.
`*_kernels` import Triton and are themselves imported at the first launch, never before. Nothing here waits for the
device or looks at a value on it, so that a training step can be captured in a CUDA graph; nothing depends on the order
in which programs run, so that the same input gives the same bits.
"""
