"""All-to-alls over NCCL: two ranks on one GPU, whom NCCL takes for two hosts, against torch's own."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "coflow"))

from exchanging_ranks import check_exchanges, in_ranks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def test_ranks_get_what_torch_gives_them(tmp_path):
    in_ranks(2, check_exchanges, tmp_path, "nccl")
