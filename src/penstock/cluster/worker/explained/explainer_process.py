"""The explainer: a process of low priority that finds masks for one worker, one explanation after the other.

It reads messages from its standard input and answers on its standard output. The first message describes the model,
every other one has weights and rows. While it computes it sends heartbeats. It ends when its input does, so that it
outlives its worker by at most one pass.
"""

import json
import os
import struct
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch

from penstock.cluster.worker.explained.explanation_graph import Encode, FoundRowMasks, PooledRows, explained_masks
from penstock.errors import PenstockError
from penstock.explain import MaskOptions
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.nn import ModelOptions, build_model

_LOWEST = 19
_SIGN_SECONDS = 0.5
"""The least seconds between two heartbeats: each of them interrupts the worker."""
_RATE = 0.1
"""The learning rate of masks. Masks after 20 steps are as close to those of a thousand small steps as after 50 steps of
0.01.
"""


# Messages between a worker and its explainer through pipes: a JSON document and named arrays, never code.

_LENGTH = struct.Struct(">Q")
_MOST = 1 << 40
Read = Callable[[int], bytes]
"""Reads exactly so many bytes."""


class Frame(NamedTuple):
    """A message: a document and named arrays."""

    document: dict[str, Any]
    arrays: dict[str, Array]


def encoded(document: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """A message as bytes, which the other process's `decoded` reads."""
    kept = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    described = [[name, array.dtype.str, list(array.shape)] for name, array in kept.items()]
    header = json.dumps({"document": document, "arrays": described}).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *(array.tobytes() for array in kept.values())])


def read_frame(read: Read) -> Frame:
    """The next message; whatever `read` raises at the end of the stream is raised."""
    (length,) = _LENGTH.unpack(read(_LENGTH.size))
    try:
        header = json.loads(read(length) if length < _MOST else b"")
        arrays = {}
        for name, kind, shape in header["arrays"]:
            dtype = np.dtype(kind)
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            arrays[str(name)] = np.frombuffer(bytearray(read(size)), dtype).reshape(shape)
        return Frame(dict(header["document"]), arrays)
    except (ValueError, KeyError, TypeError) as error:
        raise PenstockError(f"The explainer's message cannot be read ({error}).", code="malformed-message") from None


# The process.


def main() -> int:
    """Answer until the input ends."""
    torch.set_num_threads(1)
    # For products of a few hundred rows oneDNN takes several times as long on some CPUs.
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)

    def read(size: int) -> bytes:
        data = source.read(size)
        if len(data) < size:
            raise EOFError
        return data

    try:
        explainer = Explainer(read_frame(read).document, sink)
        # Lower the priority only now: batches may have to wait for the start.
        os.nice(_LOWEST)
        while True:
            explainer.answer(read_frame(read))
    except (EOFError, BrokenPipeError):
        return 0


class Explainer:
    """Finds masks for one model, which `about` describes (see `explanations.described_model`)."""

    def __init__(self, about: dict[str, Any], sink: BinaryIO) -> None:
        """Answers and heartbeats are written to `sink`."""
        self._about, self._sink, self._signed = about, sink, 0.0
        self._edge_types: list[EdgeType] = [(kind[0], kind[1], kind[2]) for kind in about["edge_types"]]
        self._typed = len(about["widths"]) > 1 or len(self._edge_types) > 1
        options, widths = ModelOptions.model_validate(about["model"]), about["widths"]
        if self._typed:
            self._model = build_model(options, widths, about["outputs"], self._edge_types, about["target"])
        else:
            self._model = build_model(options, next(iter(widths.values())), about["outputs"])
        self._model.eval().requires_grad_(False)
        self._load_kernels()
        self._send({"alive": True}, {})

    def answer(self, asked: Frame) -> None:
        """Answer with the masks of one explanation and its wall and CPU seconds; or with the reason
        why there are none.
        """
        began, processor = time.perf_counter(), time.process_time()
        weights = {name[2:]: torch.from_numpy(each) for name, each in asked.arrays.items() if name.startswith("w ")}
        rows = {
            name: PooledRows(*(torch.from_numpy(asked.arrays[f"{what} {name}"]) for what in ("mean", "remote")))
            for name in self._about["widths"]
        }
        try:
            found = self.masks(weights, rows, asked.document["seed"])
        except PenstockError as error:
            self._send({"error": str(error), "code": error.code}, {})
            return
        except BrokenPipeError:
            raise
        except Exception as error:
            # Another process would fail alike: report it to the worker, whose log has the traceback.
            traceback.print_exc()
            self._send(
                {"error": f"An explanation failed ({type(error).__name__}: {error}).", "code": "unexpected-failure"}, {}
            )
            return
        spent = {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - processor}
        masks = {f"rows {name}": each.rows for name, each in found.items()}
        self._send(spent, masks | {f"columns {name}": each.columns for name, each in found.items()})

    def masks(
        self, weights: Mapping[str, torch.Tensor], rows: dict[str, PooledRows], seed: int
    ) -> dict[str, FoundRowMasks]:
        """The masks by node type, for the model with these weights."""
        self._model.load_state_dict(weights)
        return self._explained(rows, self._about["steps"], seed)

    def _load_kernels(self) -> None:
        """Explain two rows in one step, so that everything is loaded and compiled when training asks."""
        rows = {name: torch.ones(2, width) for name, width in self._about["widths"].items()}
        self._explained({name: PooledRows(each[0], each) for name, each in rows.items()}, 1, 0)

    def _explained(self, rows: dict[str, PooledRows], steps: int, seed: int) -> dict[str, FoundRowMasks]:
        about = self._about
        given = self._encode(), rows, self._edge_types, about["target"], about["layers"], about["output"]
        return explained_masks(*given, MaskOptions(steps, _RATE, about["loss"]), seed, self._sign)

    def _sign(self) -> None:
        """Send a heartbeat, unless one was sent just now."""
        now = time.monotonic()
        if now - self._signed >= _SIGN_SECONDS:
            self._signed = now
            self._send({"alive": True}, {})

    def _encode(self) -> Encode:
        if self._typed:
            return lambda blocks, x: self._model(blocks, x)[self._about["target"]]
        return lambda blocks, x: self._model(blocks, next(iter(x.values())))

    def _send(self, document: dict[str, Any], arrays: dict[str, Any]) -> None:
        self._sink.write(encoded(document, arrays))


if __name__ == "__main__":
    sys.exit(main())
