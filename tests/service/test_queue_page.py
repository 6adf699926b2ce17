"""The live page in a real browser: submit, watch, cancel, a wrong token, a phone's width. Needs chromium."""

import json
import re
import threading
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser, browser
from penstock.report import markup
from penstock.report.markup import SCRIPT
from penstock.service.scheduler import Served
from penstock.service.service import answering, listening_at
from penstock.service.workers.pool import WarmPool
from queue_parts import Client, Parts, answering_parts, make_parts
from training_graphs import community_graph

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the live page is tested in chromium, which is not installed")

TOKEN = "the-token-of-the-test"
MB = 1 << 20


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def parts(tmp_path):
    pool = WarmPool()
    found = make_parts(tmp_path / "queue", allowed=[tmp_path.resolve()], pool=pool)
    community_graph(30).save(tmp_path / "graph")
    yield found
    found.close()
    pool.close()


@pytest.fixture
def client(parts):
    with answering_parts(parts, TOKEN) as client:
        yield client


@pytest.fixture
def opened(page: Browser, client: Client):
    """The page with its token entered; it must end without an error that nobody caught."""
    _open(page, client)
    _enter(page, TOKEN)
    page.wait_for("document.documentElement.dataset.ready")
    yield page
    assert page.problems == []
    # The next test gets another service at another port.
    page.open("about:blank#")


def _open(page: Browser, client: Client, width: int = 1100) -> None:
    page.requests.clear()
    page.problems.clear()
    page.resize(width, 900)
    page.open(f"http://127.0.0.1:{client.port}/")


def _enter(page: Browser, token: str) -> None:
    page.wait_for("!document.querySelector('#login').hidden")
    page.type("#token", token)
    page.click("#login button")


def _add(parts: Parts, count: int, name: str = "a job", **changes) -> list[int]:
    """Queue jobs as the service has them."""
    document = {"graph": "somewhere", "model": "sage"}
    job = {"name": name, "document": document, "priority": 0, "kind": "cpu", "cores": 1, "run": "", "likeness": "x"}
    records = parts.database.add([dict(job, document=dict(document)) for _ in range(count)], _run_of(parts))
    for record in records if changes else ():
        parts.database.change(record.id, **changes)
    return [record.id for record in records]


def _run_of(parts: Parts):
    return lambda number: parts.folder.job(number) / "run"


def _row(number: int) -> str:
    return f"document.querySelector('#jobs tr[data-id=\"{number}\"]')"


def test_a_wrong_token_opens_nothing_and_the_right_one_is_never_in_an_address(page, client):
    _open(page, client)
    _enter(page, "wrong")
    page.wait_for("document.querySelector('#login-problem').textContent")
    assert "not the token" in page.text("#login-problem")
    assert page.get("document.querySelector('#content').hidden")
    assert page.get("sessionStorage.length") == 0
    _enter(page, TOKEN)
    page.wait_for("document.documentElement.dataset.ready")
    assert page.get("document.querySelector('#login').hidden")
    # A reload asks for it no second time; another tab would.
    page.reload()
    page.wait_for("document.documentElement.dataset.ready && !document.querySelector('#content').hidden")
    assert page.get("localStorage.getItem('penstock-token')") is None
    assert TOKEN not in page.get("location.href + document.cookie")
    sent = [request["url"] for request in page.requests if not request["url"].startswith("data:")]
    assert sent and all(url.startswith(f"http://127.0.0.1:{client.port}/") and TOKEN not in url for url in sent)
    assert any(request["headers"].get("Authorization") == f"Bearer {TOKEN}" for request in page.requests)
    assert page.problems == []


def test_a_token_that_is_no_longer_valid_locks_the_page(opened):
    opened.get("sessionStorage.setItem('penstock-token', 'old')")
    opened.reload()
    opened.wait_for("document.querySelector('#login-problem').textContent")
    assert not opened.get("document.querySelector('#login').hidden")
    assert opened.get("document.querySelector('#content').hidden")
    assert opened.get("sessionStorage.length") == 0


def test_a_job_and_a_sweep_are_submitted(opened, parts, tmp_path):
    opened.get("document.querySelector('#submit-card').open = true")
    opened.type("#submit-job", f"graph: {tmp_path / 'graph'}  # a comment\nmodel: gcn\nfanouts: [5, 3]\nhidden: 8\n")
    opened.type("#submit-priority", "3")
    opened.click("#submit button")
    opened.wait_for("document.querySelector('#submit-done').textContent.includes('Job 1 is queued')")
    opened.wait_for(_row(1))
    record = parts.database.job(1)
    assert (record.priority, record.document["model"], record.document["hidden"]) == (3, "gcn", 8)
    assert list(record.document["fanouts"]) == [5, 3]
    opened.type("#submit-sweep", "lr=0.01,0.003 hidden=4,8")
    opened.type("#submit-name", "mine")
    opened.click("#submit button")
    opened.wait_for(_row(5))
    swept = [parts.database.job(number).document for number in range(2, 6)]
    assert {(each["lr"], each["hidden"]) for each in swept} == {(0.01, 4), (0.01, 8), (0.003, 4), (0.003, 8)}
    assert opened.text("#jobs tr .open") == parts.database.job(5).name == "mine, lr=0.003, hidden=8"


def test_metrics_are_shown_and_the_best_job_of_a_sweep_is_marked(opened, parts):
    sweep = _add(parts, 3, state="ended", started=1000.0, seconds=9.0)
    for number, value in zip(sweep, (0.25, 0.5, 0.4), strict=True):
        reached = {"name": "accuracy", "better": "higher", "val": value, "epoch": 4, "test": value - 0.125}
        parts.database.change(number, metric=reached)
    (alone,) = _add(parts, 1, state="running", metric={"name": "mrr", "better": "higher", "val": 0.75})
    opened.wait_for(f"{_row(alone)} && {_row(alone)}.querySelector('.metric').innerText === '0.7500 mrr'")
    opened.wait_for(f"{_row(sweep[1])}.querySelector('.best')")
    assert "0.5000 accuracy" in opened.text(f'tr[data-id="{sweep[1]}"] .metric')
    assert opened.text(f'tr[data-id="{sweep[1]}"] .test') == "test 0.3750"
    assert opened.get("document.querySelectorAll('.best').length") == 1
    opened.click(f'#jobs [data-open="{sweep[1]}"]')
    opened.wait_for("document.querySelector('#job-facts').innerText.includes('0.5000, epoch 4, best of its sweep')")
    parts.database.change(sweep[0], metric={"name": "accuracy", "better": "higher", "val": 0.625})
    opened.wait_for(f"{_row(sweep[0])}.querySelector('.best') && document.querySelectorAll('.best').length === 1")


@pytest.mark.parametrize("width", [400, 1100, 1600])
def test_labels_of_devices_are_beside_the_bars(opened, parts, width):
    for device, started in (("cpu", 1000.0), ("cuda:0", 1010.0)):
        _add(parts, 2, state="ended", device=device, started=started, ended=started + 30, seconds=30.0)
    opened.wait_for("document.querySelectorAll('#gantt rect').length === 4")
    opened.resize(width, 900)
    overlapping = """
        [...document.querySelectorAll('#gantt .lane')].flatMap((label) => {
          const text = label.getBoundingClientRect();
          return [...document.querySelectorAll('#gantt rect')].map((bar) => bar.getBoundingClientRect()).filter((bar) =>
            Math.min(text.bottom, bar.bottom) - Math.max(text.top, bar.top) > 1
            && Math.min(text.right, bar.right) > Math.max(text.left, bar.left));
        }).length"""
    opened.wait_for(f"innerWidth === {width}")
    assert opened.get("document.querySelectorAll('#gantt .lane').length") == 2
    assert opened.get(overlapping) == 0
    heights = (
        "[...document.querySelectorAll('#gantt rect')].map((bar) => Math.round(bar.getBoundingClientRect().height))"
    )
    assert set(opened.get(heights)) <= {15, 16, 17}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("graph: /somewhere/else\n", "outside of what the service may read"),
        ("no field here\n", 'not "field: value"'),
        ("{broken", "not valid JSON"),
    ],
)
def test_what_cannot_be_queued_is_said_in_a_sentence(opened, parts, text, sentence):
    opened.get("document.querySelector('#submit-card').open = true")
    opened.type("#submit-job", text)
    opened.click("#submit button")
    opened.wait_for("document.querySelector('#submit-problem').textContent")
    assert sentence in opened.text("#submit-problem")
    assert parts.database.counts() == {}


def test_a_job_is_watched_from_waiting_to_its_end(opened, parts):
    (number,) = _add(parts, 1, state="waiting", host_bytes=300 * MB)
    opened.wait_for(f"{_row(number)} && {_row(number)}.textContent.includes('waiting')")
    run = parts.folder.job(number) / "run"
    run.mkdir(parents=True)
    parts.folder.log(number).write_text("training (2 epochs)\n")
    steps = [{"kind": "step", "step": step, "loss": 2.0 / (step + 1)} for step in range(8)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in steps))
    parts.database.change(number, state="running", device="cpu", started=1000.0, granted_host_bytes=300 * MB)
    opened.wait_for(f"{_row(number)}.textContent.includes('running')")
    opened.wait_for("document.querySelectorAll('#curves .plot').length === 1")
    opened.wait_for("document.querySelectorAll('#gantt rect').length === 1")
    opened.click(f'#jobs [data-open="{number}"]')
    # Both cards draw the same eight points.
    path = "document.querySelector('{} .plot path:last-of-type').getAttribute('d').match(/[ML]/g).length"
    for card in ("#curves", "#job-curves"):
        opened.wait_for(f"{path.format(card)} === 8")
    opened.wait_for("document.querySelector('#job-log').textContent.includes('training (2 epochs)')")
    with parts.folder.log(number).open("a") as log:
        log.write("epoch 1 is done <b>\n")
    opened.wait_for("document.querySelector('#job-log').textContent.includes('epoch 1 is done <b>')")
    parts.database.change(
        number, state="ended", ended=1090.0, seconds=90.0, peak_host_bytes=280 * MB, reason="It has ended."
    )
    opened.wait_for(f"{_row(number)}.textContent.includes('ended')")
    shown = opened.text(f'#jobs tr[data-id="{number}"]')
    assert "1 min 30 s" in shown and "took 294 MB" in shown and "It has ended." in shown
    opened.wait_for("document.querySelector('#curves').offsetParent === null")
    opened.wait_for("document.querySelector('#job-facts').textContent.includes('ended')")
    assert opened.get("document.querySelector('#job-cancel').hidden")


def test_a_job_is_tried_again_and_its_report_is_opened(opened, parts):
    failed, other = _add(parts, 2, state="failed", reason="The loss became NaN.", tries=1, host_bytes=MB)
    run = Path(parts.database.job(other).run)
    run.mkdir(parents=True)
    (run / "report.html").write_text(f"<title>its report</title><script>{SCRIPT}</script>")
    opened.wait_for(_row(failed))
    opened.click(f'[data-retry="{failed}"]')
    opened.wait_for(f"{_row(failed)}.textContent.includes('interrupted')")
    assert parts.database.job(failed).state == "interrupted"
    opened.click(f'[data-open="{other}"]')
    opened.wait_for("!document.querySelector('#job-report').hidden")
    # A new tab is the browser's matter: what would be opened is looked at.
    opened.get("HTMLAnchorElement.prototype.click = function () { window.reported = this; }")
    opened.click("#job-report")
    opened.wait_for("window.reported && window.reported.href.startsWith('blob:')")
    assert opened.get("window.reported.target") == "_blank"
    opened.click("#job-retry")
    opened.wait_for("document.querySelector('#job-retry').hidden")
    assert parts.database.job(other).state == "interrupted"


def test_cancelling_asks_twice_and_is_refused_in_a_sentence_when_it_is_too_late(opened, parts):
    first, second = _add(parts, 2, state="waiting")
    opened.wait_for(_row(second))
    opened.click(f'[data-cancel="{first}"]')
    opened.wait_for(f"{_row(first)}.querySelector('.armed')")
    assert parts.database.job(first).state == "waiting"
    opened.click(f'[data-cancel="{first}"]')
    opened.wait_for(f"{_row(first)}.textContent.includes('cancelled')")
    assert parts.database.job(first).state == "cancelled"
    assert parts.database.job(second).state == "waiting"
    opened.click(f'#jobs [data-open="{second}"]')
    opened.wait_for("document.querySelector('#job-title').textContent.startsWith('Job')")
    opened.click("#job-cancel")
    parts.database.change(second, state="ended")
    opened.get("document.querySelector('#job-cancel').click()")
    opened.wait_for("document.querySelector('#job-problem').textContent")
    assert "nothing to cancel" in opened.text("#job-problem")
    opened.click("#job-close")
    opened.wait_for("document.querySelector('#job').hidden")


def test_names_and_reasons_are_text(opened, parts):
    trick = "<img src=x onerror='document.title=1'>"
    (number,) = _add(parts, 1, name=trick, state="failed", reason=trick, device=trick, started=1.0, ended=2.0)
    opened.wait_for(_row(number))
    opened.wait_for("document.querySelectorAll('#gantt rect').length === 1")
    assert opened.text("#jobs .open") == trick
    assert opened.get("document.querySelectorAll('main img').length") == 0


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_everything_without_scrolling_sideways(opened, parts, dark, tmp_path):
    long = "lr 0.001, hidden 256, fanout 15-10-5, a name without spaces " + "x" * 120
    _add(parts, 12, name=long, state="waiting", host_bytes=300 * MB, reason="It waits for memory. " * 6)
    _add(parts, 3, state="running", device="cpu", started=1000.0, host_bytes=1 << 34)
    _add(parts, 3, state="ended", device="cpu", started=1000.0, ended=1100.0, seconds=100.0, peak_host_bytes=1 << 33)
    opened.wait_for(f"{_row(18)} && {_row(18)}.textContent.includes('ended')")
    for card in ("submit-card",):
        opened.get(f"document.querySelector('#{card}').open = true")
    opened.click('#jobs [data-open="18"]')
    opened.wait_for("document.querySelector('#job-facts').children.length")
    for width in (400, 320, 1100):
        opened.resize(width, 900, dark)
        opened.wait_for(f"innerWidth === {width} && document.querySelectorAll('#jobs tr').length === 18")
        assert opened.get("document.documentElement.scrollWidth") <= width
    opened.resize(400, 900, dark)
    paper = "rgb(13, 19, 21)" if dark else "rgb(244, 246, 245)"
    opened.wait_for(f"getComputedStyle(document.body).backgroundColor === '{paper}'")
    # The button overrides what the system prefers.
    opened.click("#theme")
    opened.wait_for(f"getComputedStyle(document.body).backgroundColor !== '{paper}'")
    opened.get("localStorage.clear()")
    opened.picture(tmp_path / "phone.png")
    assert (tmp_path / "phone.png").stat().st_size > 10_000


@pytest.mark.long
def test_ten_thousand_jobs_are_paged(opened, parts):
    _add(parts, 10_000)
    opened.reload()
    opened.wait_for(f"{_row(10_000)} && document.querySelectorAll('#jobs tr').length === 20")
    assert "10,000" in opened.text("#chips")
    opened.click("#older")
    opened.wait_for(f"{_row(9980)} && !{_row(10_000)}")
    opened.click("#older")
    opened.wait_for(_row(9960))
    opened.click("#newer")
    opened.wait_for(_row(9980))
    opened.click('[data-group="failed"]')
    opened.wait_for("!document.querySelector('#jobs-none').hidden")
    assert opened.get("document.querySelectorAll('#jobs tr').length") == 0


def test_a_service_that_goes_away_is_said_and_found_again(page, parts):
    with answering_parts(parts, TOKEN) as client:
        _open(page, client)
        _enter(page, TOKEN)
        page.wait_for("document.querySelector('#live').textContent === 'live'")
    page.wait_for("document.querySelector('#header').className !== 'good'")
    assert not page.get("document.querySelector('#content').hidden")
    served = Served(parts.operations, parts.scheduler, parts.feed)
    with listening_at("127.0.0.1", client.port) as listening, answering(served, listening, TOKEN):
        page.wait_for("document.querySelector('#live').textContent === 'live'")
        (number,) = _add(parts, 1)
        page.wait_for(_row(number))


@pytest.mark.slow
def test_a_real_job_is_trained_while_the_page_is_open(opened, parts, tmp_path):
    stop = threading.Event()
    ticking = threading.Thread(target=parts.scheduler.run, args=(stop.is_set,))
    ticking.start()
    try:
        opened.get("document.querySelector('#submit-card').open = true")
        opened.type("#submit-job", f"graph: {tmp_path / 'graph'}\nepochs: 3\nhidden: 8\nfanouts: [4]\n")
        opened.click("#submit button")
        opened.wait_for(f"{_row(1)} && {_row(1)}.textContent.includes('ended')")
        opened.click('#jobs [data-open="1"]')
        opened.wait_for("document.querySelectorAll('#job-curves .plot').length === 1")
        opened.wait_for("document.querySelectorAll('#gantt rect').length === 1")
    finally:
        stop.set()
        ticking.join()
    assert parts.database.job(1).state == "ended"


def test_the_page_has_the_colours_of_the_reports():
    """The page cannot import the reports' style sheet; it holds the same colours, and loads nothing."""
    text = (Path(markup.__file__).parents[1] / "service" / "page.html").read_text()
    reports = dict(re.findall(r"(--[\w-]+): (#\w+)", markup.STYLE.partition("@media")[0]))
    dark = dict(re.findall(r"(--[\w-]+): (#\w+)", markup.STYLE.partition("@media")[2]))
    parts = text.partition("@media screen and (prefers-color-scheme: dark)")
    for found, wanted in ((parts[0], reports), (parts[2].partition("@media screen {")[0], dark)):
        colours = dict(re.findall(r"(--[\w-]+): (#\w+)", found))
        assert len(colours) > 15 and colours.items() <= wanted.items()
    assert not re.findall(r"(?:src|href)=\"(?!/api|data:,)", text)
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]


@pytest.mark.parametrize("dark", [False, True])
def test_no_width_has_a_fault_of_layout(opened, parts, dark):
    long = "lr 0.001, hidden 256, fanout 15-10-5"
    _add(parts, 4, name=long, state="waiting", host_bytes=300 * MB, reason="It waits for memory. " * 3)
    _add(parts, 3, state="running", device="cpu", started=1000.0, host_bytes=1 << 34)
    _add(parts, 2, state="failed", device="cpu", started=1000.0, ended=1050.0, reason="The loss is nan: lower lr.")
    _add(parts, 3, state="ended", device="cpu", started=1000.0, ended=1100.0, seconds=100.0, peak_host_bytes=1 << 33)
    opened.wait_for(f"{_row(12)} && {_row(12)}.textContent.includes('ended')")
    opened.click('#jobs [data-open="12"]')
    opened.wait_for("document.querySelector('#job-facts').children.length")
    for submits in ("false", "true"):
        opened.get(f"document.querySelector('#submit-card').open = {submits}")
        for width in (400, 1100, 1600):
            opened.resize(width, 900, dark)
            opened.wait_for(f"innerWidth === {width} && document.querySelectorAll('#jobs tr').length === 12")
            opened.get("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            assert opened.layout_faults() == [], width
