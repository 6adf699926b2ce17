"""The card of a run whose sampler followed explanations of the model: what they chose, saved and cost."""

from penstock.quantities import counted, percent
from penstock.report.markup import card, pairs
from penstock.report.run_folder import RunRecord
from penstock.report.values import mapping, number, whole
from penstock.report.words import mebibytes, seconds

_MIB = 1 << 20
_MOST_TYPES = 12


def explanations_card(run: RunRecord) -> str:
    """The first worker's explanations; nothing for other runs."""
    found = mapping(run.result.get("explanations"))
    made = whole(found.get("made"))
    if made is None:
        return ""
    rows = [("explanations", f"{made:,}"), *_chosen(found), *_saved(found), *_cost(found)]
    return card("Explanations", pairs(rows), "of the first worker")


def _chosen(found: dict[str, object]) -> list[tuple[str, str]]:
    """How scores are distributed, and which share of columns and vertices is remote."""
    rows = []
    explained, halo = whole(found.get("explained_rows")) or 0, whole(found.get("halo_rows")) or 0
    rows.append(("remote rows in the newest", f"{explained:,} of {counted(halo, 'remote neighbours')}"))
    histogram = found.get("scores_histogram")
    if isinstance(histogram, list) and explained:
        counts = [whole(each) or 0 for each in histogram]
        shown = [
            f"{number_of / 10:.1f} to {(number_of + 1) / 10:.1f}: {count:,}"
            for number_of, count in enumerate(counts[:10])
            if count
        ]
        rows.append(("scores", ", ".join(shown)))
    sent, every = mapping(found.get("columns_sent")), mapping(found.get("columns_in_all"))
    rows += [
        (f"columns of {name} sent", f"{whole(sent[name]) or 0:,} of {whole(every.get(name)) or 0:,}")
        for name in list(sent)[:_MOST_TYPES]
    ]
    vertices = mapping(found.get("vertices"))
    remote, count = number(vertices.get("remote")) or 0.0, number(vertices.get("all")) or 0.0
    if count:
        rows.append(("remote vertices in batches", f"{remote:,.0f} of {count:,.0f} ({percent(remote / count)})"))
    return rows


def _saved(found: dict[str, object]) -> list[tuple[str, str]]:
    rows = mapping(found.get("rows"))
    size, stored = number(rows.get("bytes")) or 0.0, number(rows.get("bytes_as_stored")) or 0.0
    if not stored:
        return []
    return [("bytes of rows saved", f"{_bytes(stored - size)} of {_bytes(stored)} ({percent(1 - size / stored)})")]


def _cost(found: dict[str, object]) -> list[tuple[str, str]]:
    took, cores = number(found.get("seconds")) or 0.0, number(found.get("cores")) or 0.0
    pulled, sent = number(found.get("bytes_pulled")) or 0.0, number(found.get("score_bytes_sent")) or 0.0
    return [
        ("seconds of explaining", f"{seconds(took)} on {cores:.2f} cores"),
        ("batches waited for them", seconds(number(found.get("waited_s")) or 0.0)),
        ("read for explanations", _bytes(pulled)),
        ("scores sent to owners", _bytes(sent)),
    ]


def _bytes(size: float) -> str:
    return mebibytes(size / _MIB)
