"""All-to-alls between real processes over gloo, in worlds and groups of one to four: as torch's own, bit for bit."""

import pytest
import torch
import torch.distributed as dist
from exchanging_ranks import check_exchanges, in_ranks

import penstock as ps


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
def test_ranks_get_what_torch_gives_them(count, tmp_path):
    in_ranks(count, check_exchanges, tmp_path)


def test_one_rank_keeps_what_it_has(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        rows = torch.arange(6.0).view(3, 2)
        came = ps.coflow.all_to_all(rows)
        assert torch.equal(came, rows) and came.data_ptr() != rows.data_ptr()
        (apart,) = ps.coflow.all_to_all([rows], schedule="matched")
        assert torch.equal(apart, rows)
    finally:
        dist.destroy_process_group()
