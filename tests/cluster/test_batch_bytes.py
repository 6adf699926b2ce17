"""The bytes of batches by use."""

from penstock.cluster.run import batch_bytes


def test_every_use_has_its_bytes():
    batch = {"kind": "batch", "bytes": 60, "flows": {"batches": 10, "features": 20, "lists": 30}}
    others = [{"kind": "preparation", "bytes": 7}, {"kind": "explanations", "bytes": 5, "flows": {"features": 5}}]
    assert batch_bytes([batch, *others, {"kind": "gradients", "bytes": 9}]) == {
        "rows": 20,
        "lists": 30,
        "blocks": 10,
        "preparation": 7,
        "explanations": 5,
    }
    assert set(batch_bytes([]).values()) == {0}
