"""Run folders as the trainer leaves them, made of formulas: any length, any state."""

import json
import math

import yaml

STAGES = ("seeds", "sample", "gather", "transfer", "compute")
DEFAULTS = {
    "model": "sage",
    "layers": 3,
    "hidden": 256,
    "fanouts": (15, 10, 5),
    "batch_size": 1024,
    "epochs": 20,
    "lr": 0.001,
    "optimiser": "adam",
    "dropout": 0.5,
    "seed": 0,
    "patience": None,
    "device": "auto",
}
_SHARES = {"seeds": 0.01, "sample": 0.62, "gather": 0.21, "transfer": 0.0, "compute": 0.96}
_THREADS = {"seeds": 1, "sample": 2, "gather": 1, "transfer": 1, "compute": 1}


def write_run(folder, epochs=24, state="finished", message="", events=True, loss=None, **changes):
    """A run of `epochs` epochs of 12 batches; `loss` is a function of the epoch, `changes` go into run.json."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [each for epoch in range(1, epochs + 1) for each in _epoch(epoch, loss or _loss)]
    document = _document(epochs, state, message)
    if state in ("finished", "stopped-early"):
        document["result"] = _result(epochs, records)
    document.update(changes)
    (folder / "run.json").write_text(json.dumps(document))
    job = {**DEFAULTS, "graph": document["graph"]["name"], "fanouts": [15, 10, 5], "epochs": epochs, "lr": 0.003}
    (folder / "job.yaml").write_text(yaml.safe_dump(job, sort_keys=False))
    with (folder / "metrics.jsonl").open("w") as lines:
        for record in [*records, {"kind": "note", "time": 0.4, "text": "Gathering uses 2 threads."}]:
            lines.write(json.dumps(record) + "\n")
    if events:
        write_events(folder / "events.jsonl", epochs=min(epochs, 6))
    return folder


def write_cluster_run(folder, **result):
    """A run of two workers on two machines, with everything that a cluster's result may hold."""
    flows = {
        f"worker-{own}>{other}/{what}": [sent, 40 * sent]
        for own, other, what, sent in (
            (0, "store-m1", "features", 206_967), (0, "store-m1", "lists", 124_390), (1, "worker-0", "state", 28),
            (1, "store-m0", "features", 124_733), (0, "controller", "rendezvous", 483), (1, "controller", "control", 4),
        )
    }  # fmt: skip
    paths = {"owner": {"rows": 10, "bytes": 1 << 20, "seconds": 0.5}, "replica": {"rows": 2000, "bytes": 2 << 20}}
    cache = {"hits": 3000, "misses": 1000, "bytes_saved": 2 << 20}
    tasks = [
        {"id": f"{kind}-{name}", "kind": kind, "machine": f"m{rank}", "restarts": rank, "peak_rss_mb": 224.4}
        for kind, names in (("store", ("m0", "m1")), ("worker", ("0", "1")))
        for rank, name in enumerate(names)
    ]
    tasks[3] |= {"remote_cache": cache, "feature_paths": paths}
    coflow = {"kind": "explanations", "count": 40, "bytes": 11_347_186, "mean_cct_s": 0.464, "p95_cct_s": 0.917}
    lost = {"task": "worker-1", "cause": "signal 9", "at": 12.3, "seconds": 4.5}
    said = {
        "placement": "search",
        "flows": "iteration-first",
        "iteration_s": 0.34,
        "epoch_s": 4.1,
        "lower_bound_s": 0.3,
    }
    write_run(folder)
    document = json.loads((folder / "run.json").read_text())
    document["result"] |= {
        "tasks": tasks, "flows": flows, "coflows": [coflow, {**coflow, "kind": "batch"}], "recoveries": [lost],
        "bytes_received": 66_000_000, "bytes_minimum": 63_000_000, "predicted": said,
        "batch_bytes": {"rows": 11_235_119, "lists": 112_067, "explanations": 2048}, **result,
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(document))
    machines = [{"name": name, "workers": 1} for name in ("m0", "m1")]
    cluster = {"machines": machines, "launcher": "local", "reduce": "servers", "wire_type": "int8", "method": "metis"}
    (folder / "cluster.json").write_text(json.dumps({**cluster, "partition": str(folder / "parts")}))
    with (folder / "events.jsonl").open("a") as lines:
        for pid in (1, 2):
            _line(lines, {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"worker-{pid - 1}"}})
        other = {"name": "compute", "ph": "X", "dur": 300_000, "pid": 2, "tid": 5}
        for at in range(72):
            _line(lines, {**other, "ts": 1_090_000 + at * 350_000, "args": {"epoch": at // 12, "batch": at % 12}})
    return folder


def write_events(path, epochs=6, batches=12, padding=0):
    """A pipeline in which compute is always busy; `padding` lengthens every line."""
    names = {1: "seeds 0", 2: "sample 0", 3: "sample 1", 4: "gather 0", 5: "compute 0"}
    with path.open("w") as lines:
        lines.write("[\n")
        for thread, name in names.items():
            _line(lines, {"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": {"name": name}})
        for at in range(epochs * batches):
            place = {"epoch": at // batches, "batch": at % batches}
            start = 50_000 + at * 350_000
            place = {**place, "padding": "x" * padding} if padding else place
            wobble = 30_000 * math.sin(at * 1.7)
            for stage, thread, begin, length in (
                ("seeds", 1, start - 760_000, 3_000),
                ("sample", 2 + at % 2, start - 720_000, 420_000 + wobble),
                ("gather", 4, start - 240_000, 73_000 + wobble / 2),
                ("compute", 5, start, 338_000 - abs(wobble) / 4),
            ):
                event = {"name": stage, "ph": "X", "ts": begin + 1e6, "dur": length, "pid": 1, "tid": thread}
                _line(lines, {**event, "args": place})
            rss = {"rss_mb": 1900 + 160 * (1 - math.exp(-at / 9)) + 25 * math.sin(at)}
            _line(lines, {"name": "memory", "ph": "C", "ts": start + 1e6, "pid": 1, "args": rss})


def _line(lines, event):
    lines.write(json.dumps(event) + ",\n")


def _loss(epoch):
    return 0.62 + 2.4 * math.exp(-epoch / 5) + 0.02 * math.sin(epoch * 2.3)


def _epoch(epoch, loss):
    start = (epoch - 1) * 4.4
    for step in range(0, 12, 2):
        place = epoch - 1 + step / 12
        value = loss(max(place, 0.1)) * (1 + 0.1 * math.sin(step * 3.1 + epoch * 1.9))
        yield {
            "kind": "step",
            "epoch": epoch - 1,
            "step": (epoch - 1) * 12 + step + 1,
            "time": start + step * 0.35,
            "loss": value,
        }
    accuracy = (
        0.731
        - 0.4 * math.exp(-epoch / 4)
        - 0.04 * (1 - math.exp(-max(epoch - 17, 0) / 60))
        + 0.003 * math.sin(epoch * 1.7)
    )
    yield {
        "kind": "epoch",
        "epoch": epoch - 1,
        "step": epoch * 12,
        "time": start + 4.4,
        "loss": loss(epoch),
        "lr": 0.003,
        "seconds": 4.2 + 0.15 * math.sin(epoch) + (1.1 if epoch == 1 else 0),
        "seeds_per_second": 2900 + 60 * math.sin(epoch),
        "val": {"accuracy": accuracy, "macro-f1": accuracy - 0.08},
        "stages": {
            name: {
                "busy_s": 4.2 * share * _THREADS[name],
                "wait_s": 4.2 * (1 - share) * _THREADS[name] * (share > 0),
                "threads": _THREADS[name],
            }
            for name, share in _SHARES.items()
        },
        "rss_mb": 1900 + 160 * (1 - math.exp(-epoch / 3)),
    }


def _document(epochs, state, message):
    return {
        "format": "penstock-run",
        "version": 1,
        "state": state,
        "message": message,
        "started": "2026-07-20T14:03:11+00:00",
        "graph": {
            "name": "synthetic-arxiv",
            "nodes": {"node": 169_343},
            "edges": {"node__to__node": 2_315_598},
            "bytes": 118_000_000,
            "features": {"node": 128},
            "classes": 40,
        },
        "task": "node-classification",
        "metric": {"name": "accuracy", "better": "higher"},
        "parameters": 217_640,
        "machine": {
            "cpu": "AMD EPYC 7B13",
            "cores": 2,
            "memory_mb": 24_104,
            "python": "3.11.9",
            "torch": "2.13.0",
            "penstock": "0.3.0",
        },
    }


def _result(epochs, records):
    done = [each for each in records if each["kind"] == "epoch"]
    best = max(done, key=lambda each: each["val"]["accuracy"])
    return {
        "epochs": epochs,
        "seconds": 4.4 * epochs,
        "epoch_seconds": [each["seconds"] for each in done],
        "seeds_per_second": 2912.4,
        "train_loss": done[-1]["loss"],
        "val": best["val"],
        "test": {"accuracy": 0.7184, "macro-f1": 0.6431},
        "best_epoch": best["epoch"] + 1,
        "limiting_stage": "compute",
        "stages": {
            name: {
                "busy_s": 4.2 * epochs * share * _THREADS[name],
                "wait_s": 4.2 * epochs * (1 - share) * _THREADS[name] * (share > 0),
                "threads": _THREADS[name],
                "depth": 4,
            }
            for name, share in _SHARES.items()
        },
        "peak_rss_mb": 2085.3,
    }
