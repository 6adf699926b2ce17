"""The layers' mechanism on a GPU, in Triton: what `aggregation`, `attention` and `drop` do for a `DeviceBlock`.

`gather` has a block's lists as kernels walk them, features that are read where they lie, and the launches of what
`gather_kernels` do; `aggregation` makes it differentiable; `attention` and `drop` have kernels of their own.
`*_kernels` import Triton and are themselves imported at the first launch, never before. Nothing here waits for the
device or looks at a value on it, so that a training step can be captured in a CUDA graph; nothing depends on the
order in which programs run, so that the same input gives the same bits.
"""
