"""The page in a browser: phone and desktop, light and dark."""

import re
import shutil
import struct
import subprocess
from html import escape

import pytest
from synthetic_runs import DEFAULTS, write_run

from penstock.report import write_report

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
SCHEMES = {"dark": 0, "light": 1}

# Runs before the page's own script, to hear its errors, and after it, to ask.
LISTENER = "<script>var troubles = []; addEventListener('error', (event) => troubles.push(event.message));</script>"
PROBE = """<script>
const root = document.documentElement, tip = document.getElementById("tip");
const point = (target) => {
  const box = target.getBoundingClientRect();
  const where = { clientX: box.left + box.width / 2, clientY: box.top + 5, bubbles: true };
  target.dispatchEvent(new PointerEvent("pointermove", where));
  return tip.hidden ? "" : tip.textContent;
};
const background = () => getComputedStyle(document.body).backgroundColor;
const found = { width: innerWidth, overflow: root.scrollWidth - root.clientWidth, before: background() };
found.curve = point(document.querySelector("[data-hover]"));
found.bar = point(document.querySelectorAll(".bar.compute")[4]);
found.lit = document.querySelectorAll(".lit").length;
document.getElementById("theme").click();
found.after = background();
found.troubles = troubles.join("; ");
found.ready = root.dataset.ready;
for (const key in found) parent.document.body.setAttribute("data-found-" + key, found[key]);
</script>"""


# A window cannot be as narrow as a phone; a frame can. Frames take the scheme of what is around them.
FRAME = """<!doctype html><meta charset="utf-8"><style>* {{ color-scheme: light dark; border: 0; margin: 0 }}</style>
<body><iframe width="{width}" height="800" srcdoc="{page}"></iframe></body>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    graph = {"name": "graph-" + "w" * 90, "nodes": {"n" * 200: 5}, "edges": {"e" * 200: 5}, "bytes": 5}
    folder = write_run(tmp_path_factory.mktemp("browser") / "run", graph=graph, machine={"m" * 90: "v" * 90})
    return write_report(folder, DEFAULTS)


def browse(page, profile, scheme, size, *more):
    settings = [f"--user-data-dir={profile}", f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"]
    command = [CHROMIUM, *FLAGS, *settings, f"--window-size={size}", *more, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1200, "light")])
def test_nothing_overflows_and_the_script_works(page, tmp_path, width, scheme):
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', LISTENER, page.read_text())
    probed = tmp_path / "probed.html"
    probed.write_text(FRAME.format(width=width, page=escape(text.replace("</body>", f"{PROBE}</body>"))))
    shown = browse(probed, tmp_path / "profile", scheme, "1280,900", "--dump-dom")
    found = dict(re.findall(r'data-found-(\w+)="([^"]*)"', shown.partition("<iframe")[0]))
    assert found["ready"] == "yes"
    assert found["troubles"] == ""
    assert found["width"] == str(width)
    assert found["overflow"] == "0"
    assert re.fullmatch(r"epoch 1[12]\d\.\d+", found["curve"])
    assert re.fullmatch(r"compute · epoch \d+, batch \d+ · \d+ ms", found["bar"])
    assert int(found["lit"]) >= 2
    light, dark = "rgb(244, 246, 245)", "rgb(13, 19, 21)"
    assert (found["before"], found["after"]) == ((dark, light) if scheme == "dark" else (light, dark))


def test_the_script_runs_under_the_pages_own_policy(page, tmp_path):
    assert 'data-ready="yes"' in browse(page, tmp_path / "profile", "light", "360,800", "--dump-dom")


def test_it_can_be_seen(page, tmp_path):
    shots = {}
    for size in ("360,800", "1280,900"):
        for scheme in SCHEMES:
            shot = tmp_path / f"{size}-{scheme}.png"
            browse(page, tmp_path / "profile", scheme, size, f"--screenshot={shot}")
            shots[size, scheme] = shot.read_bytes()
            assert struct.unpack(">II", shots[size, scheme][16:24]) == tuple(map(int, size.split(",")))
    assert len(set(shots.values())) == 4
    # A blank page of either size is a few kilobytes.
    assert min(map(len, shots.values())) > 12_000
