"""The layers' mechanism on a GPU, in Triton: `aggregation`, `attention` and `drop` for a `DeviceBlock`.

`gather` has a block's lists as kernels read them, features that are read in place, and the launches of
`gather_kernels`; `aggregation` makes it differentiable; `attention` and `drop` have kernels of their own. `*_kernels`
import Triton and are themselves imported at the first launch, never before. Nothing here waits for the device or reads
a value from it, so that a training step can be captured in a CUDA graph; nothing depends on the order in which programs
run, so that the same input gives the same bits.
"""
