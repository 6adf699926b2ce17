"""A script: a process that shares memory of its GPU, filled with a number, until it is killed. It prints the offer."""

import sys
import time

import torch

from penstock.store.device.shards import memory_of
from penstock.wire.descriptors import DescriptorServer


def main(size: int, number: int) -> None:
    """Share `size` bytes, each of them `number`."""
    memory = memory_of(torch.device("cuda"))
    address, descriptor = memory.reserve(size), memory.create(size)
    memory.map(address, size, descriptor)
    memory.tensor(address, size).fill_(number)
    memory.finish()
    print(*DescriptorServer().offer(descriptor), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
