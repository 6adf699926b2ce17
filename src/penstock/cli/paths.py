"""`penstock paths`: applications whose requests have several paths; their profile, their simulation, the optimum."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import ForceOption, JsonOption, SeedOption, check_new_file, print_json, print_rows, unwrapped
from penstock.cli.sweep import check_page
from penstock.errors import PenstockError
from penstock.formatting import counted
from penstock.paths import SELECTORS
from penstock.progress import Progress
from penstock.terminal_progress import shown_progress

if TYPE_CHECKING:
    from penstock.paths.documents import ApplicationDocument
    from penstock.paths.route_table import RouteTable

paths = typer.Typer(no_args_is_help=True, help="Requests that can take several paths: profile, simulate, compare.")

ApplicationArgument = Annotated[
    str, typer.Argument(help="An application that comes with Penstock (`penstock paths show`), or an application file.")
]
HardwareOption = Annotated[
    str | None, typer.Option(help="A hardware model or file, instead of the application's own model.")
]
MetricsOption = Annotated[Path | None, typer.Option(help="A metrics file of `profile` that selectors go by.")]
WorkloadOption = Annotated[str | None, typer.Option(help="A workload of the application; the first by default.")]
LoadOption = Annotated[
    str, typer.Option(metavar="A,B,...", help="Offered loads, as shares of the highest rate that can be served.")
]
_SELECTOR_HELP = (
    f"{', '.join(SELECTORS)}; of these node needs a name, as node:NAME; may be repeated. By default all that decide as"
    " requests come."
)


@paths.command("show")
def show_command(
    application: Annotated[str | None, typer.Argument(help="An application or its file; none: list them.")] = None,
    hardware: HardwareOption = None,
    as_json: JsonOption = False,
) -> None:
    """What ships with Penstock, or the paths of an application.

    Example: penstock paths show key-value-store
    """
    from penstock.paths.documents import shipped_applications, shipped_hardware

    if application is None:
        if hardware is not None:
            raise PenstockError("--hardware describes an application: name one.", code="option-missing")
        if as_json:
            print_json({"applications": shipped_applications(), "hardware": shipped_hardware()})
            return
        print(f"Applications: {', '.join(shipped_applications())}")
        print(f"Hardware models: {', '.join(shipped_hardware())}")
        return
    document, table = _built(application, hardware, None)
    rows = _path_rows(table)
    if as_json:
        print_json({"application": document.name, "about": document.about, "made": document.made, "paths": rows})
        return
    print(f"{document.name}: {document.about}")
    cells = (
        [row["request"], row["path"], *(f"{row[name]:.2f} us" for name in _TIMES), " ".join(row["over"])]
        for row in rows
    )
    print_rows(
        unwrapped(("request", "path", "base", "end to end", "apart", "toll", "toll per place", "over")),
        cells,
        width=200,
    )
    for sentence in document.made:
        print(f"Made: {sentence}")


@paths.command("profile")
def profile_command(
    application: ApplicationArgument,
    out: Annotated[Path, typer.Option(help="The metrics file to write (YAML).")],
    hardware: HardwareOption = None,
    seed: SeedOption = 0,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure every path alone: the time of a lone request, and what each request of a burst adds.

    Example: penstock paths profile key-value-store --out metrics.yaml
    """
    from penstock.paths.documents import write_metrics
    from penstock.paths.simulation import profile_paths

    check_new_file(out, force)
    document, table = _built(application, hardware, None)
    with shown_progress(as_json, f"Profiling {counted(len(table.paths), 'paths')} of {document.name}") as progress:
        metrics = profile_paths(table, document.name, hardware or document.hardware, seed, progress)
    write_metrics(metrics, out)
    if as_json:
        print_json({"out": str(out), **metrics.model_dump()})
        return
    print(f"Metrics: {out}")


@paths.command("simulate")
def simulate_command(
    application: ApplicationArgument,
    hardware: HardwareOption = None,
    metrics: MetricsOption = None,
    workload: WorkloadOption = None,
    selector: Annotated[list[str] | None, typer.Option(help=_SELECTOR_HELP)] = None,
    load: LoadOption = "0.3,0.5,0.7,0.8,0.9",
    requests: Annotated[int, typer.Option(min=10, max=10_000_000, help="Requests of each simulation.")] = 50_000,
    horizon: Annotated[int, typer.Option(min=1, max=64, help="Requests that `rolling-horizon` decides together.")] = 8,
    seed: SeedOption = 0,
    chart: Annotated[Path | None, typer.Option(help="Draw latency against load as a page (.html).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Latency against offered load, for one selector or all.

    Example: penstock paths simulate key-value-store --workload ycsb-b --chart latency.html
    """
    from penstock.paths import selector_named
    from penstock.paths.optimum import highest_rate
    from penstock.paths.request_sequence import workload_shares

    if chart is not None:
        check_page(chart)
    document, table = _built(application, hardware, metrics)
    # `node` needs a name, so it is not among the selectors that run by default.
    names = selector or [each.name for each in SELECTORS.values() if each.online and not each.argument]
    for name in names:
        selector_named(name)
    loads = _loads(load)
    workload, mix = workload_shares(document, workload)
    top = highest_rate(table, mix)
    opening = f"{document.name}, {workload}: at most {top / 1e6:.3g} million requests per second"
    with shown_progress(as_json, opening) as progress:
        rows, bounds = _simulated_rows(document, table, workload, names, loads, requests, horizon, seed, progress)
    if chart is not None:
        from penstock.report.sweep_pages import write_paths_page

        write_paths_page(document.name, workload, rows, bounds, top, chart)
    if as_json:
        about = {"application": document.name, "workload": workload, "highest_rate": top, "seed": seed}
        print_json({**about, "bounds": bounds, "rows": rows, "chart": None if chart is None else str(chart)})
        return
    _print_loads(rows, bounds, names)
    if chart is not None:
        print(f"Chart: {chart}")


@paths.command("optimum")
def optimum_command(
    application: ApplicationArgument,
    hardware: HardwareOption = None,
    workload: WorkloadOption = None,
    load: LoadOption = "0.8",
    requests: Annotated[int, typer.Option(min=10, max=100_000, help="Requests of the recorded sequence.")] = 200,
    horizon: Annotated[int, typer.Option(min=1, max=64, help="Requests that `rolling-horizon` decides together.")] = 8,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """How far `leo-smooth` and `leo` are from the best choices that a search with all requests at hand finds.

    Example: penstock paths optimum key-value-store --requests 100
    """
    from penstock.paths.request_sequence import workload_shares

    document, table = _built(application, hardware, None)
    workload, _ = workload_shares(document, workload)
    names = ["clairvoyant", "rolling-horizon", "leo-smooth", "leo"]
    with shown_progress(as_json, f"{document.name}, {workload}: {counted(requests, 'requests')}") as progress:
        rows, bounds = _simulated_rows(
            document, table, workload, names, _loads(load), requests, horizon, seed, progress
        )  # fmt: skip
    if as_json:
        print_json({"application": document.name, "workload": workload, "bounds": bounds, "rows": rows})
        return
    _print_loads(rows, bounds, names)


_TIMES = ("base_us", "end_to_end_us", "distinct_us", "toll_us", "toll_per_place_us")


def _built(application: str, hardware: str | None, metrics: Path | None) -> "tuple[ApplicationDocument, RouteTable]":
    from penstock.paths import build_routes, find_application, find_hardware
    from penstock.paths.documents import read_metrics
    from penstock.paths.simulation import with_metrics

    document = find_application(application)
    table = build_routes(document, find_hardware(hardware or document.hardware))
    return document, table if metrics is None else with_metrics(table, read_metrics(metrics))


def _path_rows(table: "RouteTable") -> list[dict[str, Any]]:
    routes = table.routes
    columns = {name: getattr(routes, name.removesuffix("_us")) for name in _TIMES}
    return [
        {
            "request": table.types[table.type_of(path)],
            "path": name,
            **{column: float(values[path]) for column, values in columns.items()},
            "over": table.visited(path),
        }
        for path, name in enumerate(table.paths)
    ]


def _loads(text: str) -> list[float]:
    try:
        loads = [float(part) for part in text.split(",")]
    except ValueError:
        loads = []
    if not loads or not all(0 < each <= 2 for each in loads):
        raise PenstockError(
            f"--load is {text!r}: give shares of the highest rate above 0 and up to 2, such as 0.5,0.9.",
            code="invalid-value",
        )
    return loads


def _simulated_rows(
    application: "ApplicationDocument",
    table: "RouteTable",
    workload: str,
    selectors: list[str],
    loads: list[float],
    requests: int,
    horizon: int,
    seed: int,
    progress: Progress,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The results of every selector at every load, and the bounds of each load (None above the highest rate)."""
    from penstock.paths.optimum import fluid_bound, highest_rate
    from penstock.paths.request_sequence import draw_sequence, workload_shares
    from penstock.paths.simulation import simulate_paths

    _, mix = workload_shares(application, workload)
    top = highest_rate(table, mix)
    rows: list[dict[str, Any]] = []
    bounds: list[dict[str, Any]] = []
    with progress.step("Simulating", len(loads) * len(selectors), "simulations"):
        for load in loads:
            bound = fluid_bound(table, mix, load * top)
            bounds.append({"load": load, "rate": load * top, "mean_us": None if bound is None else bound.mean_us})
            sequence = draw_sequence(application, workload, load * top, requests, seed)
            for name in selectors:
                outcome = simulate_paths(table, sequence, name, seed, horizon)
                rows.append({"load": load, "rate": load * top, **outcome.fields()})
                progress.advance(1)
    return rows, bounds


def _load_cells(rows: list[dict[str, Any]], bounds: list[dict[str, Any]], names: list[str]) -> list[list[str]]:
    cells = []
    for bound in bounds:
        found = {row["selector"]: row for row in rows if row["load"] == bound["load"]}
        shown = [f"{found[name]['median_us']:.4g} / {found[name]['p99_us']:.4g}" for name in names]
        mean = "-" if bound["mean_us"] is None else f"{bound['mean_us']:.4g}"
        cells.append([f"{bound['load']:g}", f"{bound['rate']:.3g}", *shown, mean])
    return cells


def _print_loads(rows: list[dict[str, Any]], bounds: list[dict[str, Any]], names: list[str]) -> None:
    titles = unwrapped(("load", "requests/s", *names, "fluid mean"))
    print_rows(titles, _load_cells(rows, bounds, names), width=200)
    print("Median latency / 99 of 100 within, in microseconds; the fluid bound is of the mean.")
