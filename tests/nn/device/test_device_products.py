"""Products whose neighbours in the step are done in the same pass: equal to passes of their own."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from device_blocks import assert_near, padded
from random_blocks import random_block
from torch.nn import functional

from penstock.nn import build_model
from penstock.nn.device import products
from penstock.nn.device.drop import DropKey, Dropping, Rectified
from penstock.nn.device.gather import KeptRows
from penstock.nn.device.products import (
    class_losses,
    launched_product,
    only_rectified,
    pair_of_products,
    product,
    side_by_side,
)
from penstock.nn.drop import dropping, relu_drop
from penstock.nn.layer_table import model_options
from penstock.sampling.device.block import device_block

pytestmark = pytest.mark.gpu
SMALL = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "num_warps": 2, "num_stages": 2}
WARP_GROUP = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 16, "num_warps": 4, "num_stages": 2}
exactly = partial(launched_product, precision="ieee", tile=SMALL)


@pytest.mark.parametrize(("rows", "inner", "width"), [(37, 24, 40), (16, 16, 16), (3, 7, 5), (150, 33, 17)])
@pytest.mark.parametrize("share", [0.0, 0.4])
@pytest.mark.parametrize("tile", [SMALL, WARP_GROUP])
def test_a_product_that_is_rectified_and_dropped(rows, inner, width, share, tile, device):
    x, weight = torch.randn(rows, inner), torch.randn(width, inner)
    names = torch.randperm(1000)[:rows]
    with dropping(9, names):
        expected = relu_drop(x @ weight.t(), share)
    limit = round((1 - share) * (1 << 16))
    with dropping(9, names) as stream:
        key = stream.next(names.to(device)) if share else DropKey()
    drops = Dropping(key, limit, (1 << 16) / limit)
    got = exactly(x.to(device), weight.to(device), drops, behind=8, tile=tile)
    assert_near(got[:, :width], expected.double(), 1e-5)
    assert torch.equal(got[:, width:].cpu(), torch.tensor([1.0, *[0.0] * 7]).expand(rows, 8))


@pytest.mark.parametrize("behind", [0, 8])
@pytest.mark.parametrize("tile", [SMALL, WARP_GROUP])
def test_a_gradient_with_own_rows_and_a_mask(behind, tile, device):
    x, weight, own = torch.randn(37, 24), torch.randn(40, 24), torch.randn(5, 40)
    positive = torch.randn(37, 40 + behind)
    expected = x @ weight.t()
    expected[:5] += own
    expected = torch.where(positive[:, :40] > 0, 2 * expected, 0)
    kept = KeptRows(positive.to(device), 2.0)
    got = exactly(x.to(device), weight.to(device), None, kept, own.to(device), behind, tile=tile)
    assert_near(got[:, :40], expected.double(), 1e-5)
    assert not got[:, 40:].any()


def test_narrow_rows_in_the_order_of_a_warp_group(device):
    """Their threads have eight columns each."""
    x, weight, names = torch.randn(150, 48), torch.randn(72, 48), torch.randperm(1000)[:150]
    with dropping(9, names):
        expected = relu_drop((x.half().double() @ weight.half().double().t()).float(), 0.5)
    with dropping(9, names) as stream:
        drops = Dropping(stream.next(names.to(device)), 1 << 15, 2.0)
    got = exactly(x.half().to(device), weight.half().to(device), drops, tile=WARP_GROUP)
    assert got.dtype == torch.float16
    assert_near(got.float(), expected.double(), 1e-3)


def test_split_numbers_are_as_accurate_as_float32(cuda_device):
    """Against float64, and beside torch's products in float32."""
    x, weight = torch.randn(9000, 208, device=cuda_device), torch.randn(256, 208, device=cuda_device)
    exact = x.double() @ weight.double().t()
    found = launched_product(x, weight, precision="tf32x3"), x @ weight.t()
    ours, theirs = (float((each.double() - exact).norm() / exact.norm()) for each in found)
    assert ours < max(3 * theirs, 1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_two_products_one_behind_the_other(fused, device, monkeypatch):
    """With a bias among the columns of the second, and own rows."""
    if fused:
        monkeypatch.setattr(products, "fuses", lambda x, weight: True)
        monkeypatch.setattr(products, "launched_product", exactly)
    given = [torch.randn(shape) for shape in ((30, 12), (16, 12), (20, 24), (20, 24))]
    exact = [each.double().requires_grad_() for each in given]
    ours = [each.to(device).requires_grad_() for each in given]
    hidden = product(ours[0], ours[1], only_rectified, 8)
    assert isinstance(hidden, Rectified) and hidden.shape == (30, 24)
    one = product(hidden, ours[2])
    pair = pair_of_products(Rectified(product(ours[0], ours[1], only_rectified).rows, 1.0), *_short(ours), 7)
    right_hidden = torch.relu(exact[0] @ exact[1].t())
    column = torch.tensor([1.0, *[0.0] * 7], dtype=torch.float64).expand(30, 8)
    right = torch.cat([right_hidden, column], dim=1) @ exact[2].t()
    short = _short(exact)
    right_pair = right_hidden @ short[0].t(), right_hidden[:7] @ short[1].t()
    weigh = [torch.randn(each.shape, dtype=torch.float64) for each in (right, *right_pair)]
    for mine, theirs in zip((one, *pair), (right, *right_pair), strict=True):
        assert_near(mine, theirs, 1e-5)
    sum((a * b.to(a)).sum() for a, b in zip((one, *pair), weigh, strict=True)).backward()
    sum((a * b).sum() for a, b in zip((right, *right_pair), weigh, strict=True)).backward()
    for mine, theirs in zip(ours, exact, strict=True):
        assert_near(mine.grad, theirs.grad, 1e-5)


@pytest.mark.parametrize(
    "given", [torch.ones(1, 1).expand(32, 16), torch.randn(16, 32).t(), torch.randn(32, 24)[:, :16]]
)
def test_gradients_of_any_stride(given, device, monkeypatch):
    """A number that is repeated, as that of a sum, or columns: rows that a kernel cannot read are left to torch."""
    monkeypatch.setattr(products, "is_gpu", lambda of: True)
    monkeypatch.setattr(products, "FEWEST_ROWS", 16)
    monkeypatch.setattr(products, "launched_product", exactly)
    x, weight, memory = torch.randn(32, 8), torch.randn(16, 8), given.untyped_storage().nbytes() // given.itemsize
    grad = given.as_strided((memory,), (1,)).to(device).as_strided(given.shape, given.stride())
    ours = x.to(device).requires_grad_(), weight.to(device).requires_grad_()
    product(*ours).backward(grad)
    assert_near(ours[0].grad, given.double() @ weight.double(), 1e-5)
    assert_near(ours[1].grad, given.double().t() @ x.double(), 1e-5)


@pytest.mark.parametrize("shared", [232448, 166912, 101376, 65536])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(
    ("number", "precision"), [(torch.float32, "tf32"), (torch.float32, "tf32x3"), (torch.bfloat16, "")]
)
def test_tiles_fit_the_shared_memory_of_a_gpu(shared, number, precision, back, monkeypatch):
    """Of Hopper, Ampere, and what is sold for games and for inference."""
    monkeypatch.setattr(products, "_shared_bytes", lambda device: shared)
    x = torch.empty(1, 8, dtype=number)
    tile = products._tile_of(x, 256, precision, back)
    stage = (tile["BLOCK_M"] + tile["BLOCK_N"]) * tile["BLOCK_K"] * x.element_size()
    assert tile["num_stages"] >= 2 and stage * tile["num_stages"] < shared
    assert shared < 232448 or tile == {(4, "tf32"): products.TILE, (4, "tf32x3"): products.SPLIT_TILE}.get(
        (x.element_size(), precision), products.NARROW_BACK_TILE if back else products.NARROW_TILE
    )


@pytest.mark.parametrize("tf32", [False, True])
def test_gradients_of_rows_that_follow_no_relu(tf32, device, monkeypatch):
    """In TF32, the weight is copied to be read along what is summed over."""
    monkeypatch.setattr(products, "is_gpu", lambda of: True)
    monkeypatch.setattr(products, "_splits", lambda x: not tf32)
    monkeypatch.setattr(products, "FEWEST_ROWS", 16)
    monkeypatch.setattr(products, "launched_product", exactly)
    grad, weight, own = torch.randn(32, 16), torch.randn(16, 24), torch.randn(20, 16)
    right = grad.double() @ weight.double()
    right[:20] += own.double() @ weight.double()
    moved = weight.to(device)
    assert (products._along_sums(grad.to(device), moved).stride() == (1, 16)) == tf32
    added = own.to(device) @ products._along_sums(own.to(device), moved)
    found = products.gradient_of_rows(grad.to(device), moved, None, added)
    assert_near(found, right, 1e-5)


def test_a_weight_that_is_turned(device):
    x, weight = torch.randn(32, 16), torch.randn(16, 24)
    found = exactly(x.to(device), weight.to(device).t())
    assert_near(found, x.double() @ weight.double(), 1e-5)


@pytest.mark.parametrize("widths", [(5,), (24, 24, 1), (7, 1)])
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16, torch.float64])
def test_weights_side_by_side_and_their_gradients(widths, compute, device, monkeypatch):
    monkeypatch.setattr(products, "compute_dtype", lambda weight: compute)
    own = torch.float64 if compute == torch.float64 else torch.float32
    parts = [torch.randn(40, width, dtype=own)[:, 0 if width == 1 else slice(None)] for width in widths]
    ours = [part.to(device).requires_grad_() for part in parts]
    joined = side_by_side(56, *ours, None)
    expected = torch.cat([part.view(40, -1) for part in parts] + [torch.zeros(40, 56 - sum(widths), dtype=own)], dim=1)
    # Triton's interpreter rounds to bfloat16 as it likes.
    assert joined.dtype == compute
    assert_near(joined, expected.double(), 1e-2 if compute == torch.bfloat16 else 1e-30)
    grad = torch.randn(56, 40, dtype=compute).t()
    joined.backward(grad.to(device))
    for mine, columns in zip(ours, grad.split([*widths, 56 - sum(widths)], dim=1), strict=False):
        assert torch.equal(mine.grad.cpu(), columns.reshape(mine.shape).to(own))


@pytest.mark.covering(1)
@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (37, 47), (9, 1100)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("number", [torch.float32, torch.bfloat16])
def test_losses_of_classes(rows, classes, weighted, number, device, monkeypatch):
    monkeypatch.setattr(products, "is_gpu", lambda of: True)
    x, labels = 5 * torch.randn(rows, classes), torch.randint(0, classes, (rows,))
    x[0, 1] = 300.0
    labels[rows // 2 :: 5] = -100
    weights = torch.rand(classes) if weighted else None
    ours = x.to(device, number).requires_grad_()
    exact = ours.detach().cpu().double().requires_grad_()
    expected = functional.cross_entropy(exact, labels, None if weights is None else weights.double(), reduction="none")
    found = class_losses(ours, labels.to(device), None if weights is None else weights.to(device))
    assert found.dtype == torch.float32
    assert_near(found, expected, 1e-5)
    grad = torch.randn(rows)
    found.backward(grad.to(device))
    expected.backward(grad.double())
    assert ours.grad.dtype == number
    assert_near(ours.grad.float(), exact.grad, 1e-5 if number == torch.float32 else 1e-2)


def _short(given):
    return given[2][:, :16], given[3][:, 8:]


@pytest.mark.covering(1)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("sage", {}),
        ("gcn", {}),
        ("gin", {}),
        ("gat", {"heads": 3}),
        ("gatv2", {"heads": 3}),
        ("gatv2", {"heads": 2, "hidden": 10}),
        ("gatv2", {"heads": 4, "hidden": 16, "dropout": 0.0}),
    ],
)
def test_models_learn_what_they_learn_on_the_host(model, fields, fused, device, monkeypatch):
    if fused:
        monkeypatch.setattr(products, "fuses", lambda x, weight: True)
        monkeypatch.setattr(products, "launched_product", exactly)
    torch.manual_seed(3)
    options = model_options(**{"model": model, "layers": 3, "hidden": 12, "dropout": 0.5, **fields})
    host, ours = build_model(options, 7, 5), build_model(options, 7, 5).to(device)
    ours.load_state_dict(host.state_dict())
    blocks = [random_block(num_src, num_dst, 3 * num_dst) for num_src, num_dst in pairwise([40, 22, 9, 4])]
    for block in blocks:
        block.totals = (torch.arange(block.num_src) % 5 + 1).float().numpy()
    x, given = torch.randn(blocks[0].num_src, 7), torch.randn(blocks[-1].num_dst, 5)
    names = torch.randperm(500)[:40]
    with dropping(5, names):
        expected = host(blocks, x)
    moved = [device_block(block, device) for block in blocks]
    for made, block in zip(moved, blocks, strict=True):
        made.derived["longest"] = int((block.indptr[1:] - block.indptr[:-1]).max())
    with dropping(5, names.to(device)):
        out = ours(moved, x.to(device))
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-4, atol=1e-5)
    expected.backward(given)
    out.backward(given.to(device))
    for (name, mine), theirs in zip(ours.named_parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(
            mine.grad.cpu(), theirs.grad, rtol=1e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_rows_to_spare_hold_nothing_that_is_read(device):
    """Rows, edges and sources past the batch's own, of GATv2 with everything in its pass."""
    torch.manual_seed(0)
    options = model_options(model="gatv2", layers=2, hidden=8, heads=2, dropout=0.5)
    host, ours = build_model(options, 6, 3), build_model(options, 6, 3).to(device)
    ours.load_state_dict(host.state_dict())
    blocks = [random_block(30, 12, 40), random_block(12, 5, 20)]
    x = torch.randn(30, 6)
    with dropping(1):
        expected = host(blocks, x)
    roomy = padded(blocks[0], device, rows=3, sources=4), padded(blocks[1], device, rows=2, sources=3)
    with dropping(1):
        out = ours(roomy, torch.cat([x, torch.randn(4, 6)]).to(device))
    torch.testing.assert_close(out[:5].cpu(), expected, rtol=1e-4, atol=1e-5)
    expected.square().sum().backward()
    out[:5].square().sum().backward()
    for mine, theirs in zip(ours.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-4, atol=2e-5)
