"""A real browser for tests: chromium without a window, driven through the DevTools protocol over two pipes."""

import base64
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_LONGEST_S = 60.0
"""Conditions are waited for; only a broken page waits this long."""
_FIRST_FREE = 20
"""Descriptors from here on are in nobody's way; the protocol wants 3 and 4 in the browser."""

_STARTER = """
import os, sys
for given, wanted in ((int(sys.argv[1]), 3), (int(sys.argv[2]), 4)):
    os.dup2(given, wanted, inheritable=True)
os.execv(sys.argv[3], sys.argv[3:])
"""


_LAYOUT = """
(() => {
  const faults = [], root = document.documentElement, pieces = [];
  const quoted = (text) => JSON.stringify(text.trim().replace(/\\s+/g, " ").slice(0, 60));
  if (root.scrollWidth > root.clientWidth)
    faults.push(`the page is ${root.scrollWidth} px wide in a window of ${root.clientWidth}`);
  const seen = (node) => {
    if (!node.getClientRects().length || getComputedStyle(node).visibility !== "visible") return false;
    const closed = node.closest("details:not([open])");
    return (!closed || node.closest("summary")) && !node.closest("#tip, noscript, script, style, option");
  };
  // The part of a box that its ancestors let be seen; one that can be scrolled shows all of it in the end.
  const clipped = (box, node) => {
    let { left, right, top, bottom } = box, cut = false;
    for (let each = node; each && each !== document.body; each = each.parentElement) {
      const style = getComputedStyle(each), frame = each.getBoundingClientRect();
      if (style.overflowX === "visible" || each.closest("svg")) continue;
      if (/auto|scroll/.test(style.overflowX)) return { left, right, top, bottom, scrolled: true, cut };
      if (style.textOverflow !== "ellipsis" && (left < frame.left - 1 || right > frame.right + 1)) cut = true;
      left = Math.max(left, frame.left); right = Math.min(right, frame.right);
      if (style.overflowY !== "visible") { top = Math.max(top, frame.top); bottom = Math.min(bottom, frame.bottom); }
    }
    return { left, right, top, bottom, scrolled: false, cut };
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const holder = node.parentElement, text = node.textContent;
    if (!text.trim() || !seen(holder)) continue;
    range.selectNodeContents(node);
    const card = holder.closest(".card, header, main") || document.body, frame = card.getBoundingClientRect();
    const boxes = [...range.getClientRects()].filter((box) => box.width > 0.5 && box.height > 0.5);
    for (const raw of boxes) {
      const box = clipped(raw, holder);
      if (box.cut) faults.push(`${quoted(text)} is cut off`);
      if (!box.scrolled && (box.left < frame.left - 1 || box.right > frame.right + 1))
        faults.push(`${quoted(text)} runs out of its ${card.tagName.toLowerCase()}`);
      if (box.right - box.left > 1 && box.bottom - box.top > 1 && !box.scrolled) pieces.push({ ...box, text, holder });
    }
    // A word is broken where its letters stand on several lines although one line would have held it.
    if (holder.closest("svg, pre, textarea")) continue;
    const line = holder.closest("td, th, dd, dt, p, li, h1, h2, h3, small, summary, div") || holder;
    for (const found of text.matchAll(/[\\p{L}\\p{N}_.,:@%]+/gu)) {
      range.setStart(node, found.index);
      range.setEnd(node, found.index + found[0].length);
      const parts = [...range.getClientRects()].filter((box) => box.width > 0.5);
      const tops = new Set(parts.map((box) => Math.round(box.top / 4)));
      const wide = parts.reduce((sum, box) => sum + box.width, 0);
      if (tops.size > 1 && wide < frame.width - 60) faults.push(`${quoted(found[0])} is broken in the middle`);
    }
  }
  pieces.sort((one, other) => one.top - other.top);
  pieces.forEach((one, at) => {
    for (let next = at + 1; next < pieces.length && pieces[next].top < one.bottom; next++) {
      const other = pieces[next];
      const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
      if (across > 1.5 && down > 3) faults.push(`${quoted(one.text)} lies over ${quoted(other.text)}`);
    }
  });
  // Names of lanes stand above their bars.
  for (const { left, right, top, bottom, text, holder } of pieces.filter((piece) => piece.holder.matches(".lane")))
    for (const bar of holder.closest(".plot").querySelectorAll("rect:not(.track)")) {
      const box = bar.getBoundingClientRect();
      const across = Math.min(right, box.right) - Math.max(left, box.left);
      if (across > 0 && Math.min(bottom, box.bottom) - Math.max(top, box.top) > 2)
        faults.push(`${quoted(text)} lies over a bar`);
    }
  return [...new Set(faults)];
})()
"""


class Browser:
    """One page in a browser of its own, without a history or a cache."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None, "no chromium here"
        commands, self._write = _pipe()
        self._read, answers = _pipe()
        browser = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-extensions", f"--user-data-dir={profile}",
            "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", _STARTER, str(commands), str(answers), *browser],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._numbers = itertools.count(1)
        self._received = b""
        self._session: str | None = None
        self.requests: list[dict[str, Any]] = []
        """Every request that the page has made."""
        self.problems: list[str] = []
        """Errors that nobody caught, and what the browser refused to load or run."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        self._process.wait()

    def open(self, address: str) -> None:
        """Load a page."""
        self._call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def reload(self) -> None:
        """Load the page again."""
        self.get("window.before = true")
        self._call("Page.reload")
        self.wait_for("window.before === undefined && document.readyState === 'complete'")

    def resize(self, width: int, height: int, dark: bool = False) -> None:
        """The size of the window, and what the reader's system prefers."""
        phone = width < 600
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def get(self, expression: str) -> Any:
        """What an expression of JavaScript is in the page."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Until an expression of JavaScript is true in the page."""
        until = time.monotonic() + _LONGEST_S
        # While a page is loaded its elements are not there yet.
        while not self.get(f"(() => {{ try {{ return Boolean({condition}); }} catch {{ return false; }} }})()"):
            assert self._process.poll() is None, "the browser has ended"
            assert time.monotonic() < until, f"never true: {condition}; {self.problems}; {self.text('body')[:2000]}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        """The text of an element as a reader sees it."""
        return str(self.get(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """Press a button or a link, once it is there."""
        chosen = f"document.querySelector({json.dumps(selector)})"
        self.wait_for(f"{chosen} && !{chosen}.disabled")
        self.get(f"{chosen}.click()")

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field, by the keyboard."""
        chosen = f"document.querySelector({json.dumps(selector)})"
        self.get(f"{chosen}.focus(), {chosen}.select()")
        self._call("Input.insertText", text=text)

    def picture(self, path: Path, whole: bool = False) -> None:
        """Write what the window shows, or the whole page, as a PNG."""
        more: dict[str, Any] = {}
        if whole:
            size = self.get("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
            more = {"captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "scale": 1, **_sides(*size)}}
        found = self._call("Page.captureScreenshot", **more)
        path.write_bytes(base64.b64decode(found["data"]))

    def layout_faults(self) -> list[str]:
        """What a reader would stumble over: text beyond its card or the page, over other text, or broken in a word."""
        found: list[str] = self.get(_LAYOUT)
        return found

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            part = os.read(self._read, 1 << 16)
            assert part, "the browser has ended"
            self._received += part
        first, _, self._received = self._received.partition(b"\0")
        answer: dict[str, Any] = json.loads(first)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        fields = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(fields["request"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(fields["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and fields["entry"]["source"] != "network":
            self.problems.append(fields["entry"]["text"])


def _sides(width: int, height: int) -> dict[str, int]:
    return {"width": width, "height": height}


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser for the length of a test."""
    started = Browser(profile)
    try:
        yield started
    finally:
        started.close()


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors are out of the way of those that the browser expects."""
    pair = os.pipe()
    moved = tuple(fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for each in pair)
    for each in pair:
        os.close(each)
    return moved[0], moved[1]
