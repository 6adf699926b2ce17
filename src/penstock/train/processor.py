"""The device that a job names."""

import torch

from penstock.errors import PenstockError


def chosen_device(name: str) -> torch.device:
    """The device of a job; `auto` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise PenstockError(f"There is no device {name!r}: use auto, cpu or cuda.", code="unknown-name") from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise PenstockError(f"Device {name!r} is not supported: use auto, cpu or cuda.", code="unsupported-combination")
    if not torch.cuda.is_available():
        raise PenstockError(
            f"Device {name!r} does not exist, or torch was built without CUDA: use auto or cpu.",
            code="device-not-found",
        )
    if device.index:
        # Every thread would have to be told; the system can tell the whole process.
        raise PenstockError(
            f"Device {name!r} is not the first GPU: set CUDA_VISIBLE_DEVICES={device.index} and use device cuda.",
            code="unsupported-combination",
        )
    return device
