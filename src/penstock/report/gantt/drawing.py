"""Bands as HTML places, and as the numbers that the page's script draws into them."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from penstock.report.gantt.bars import Band, GanttBar, GanttLane, Merged
from penstock.report.gantt.findings import link_use_over_time
from penstock.report.words import seconds
from penstock.simulate import CriticalStep, Timeline

# What the page of a simulation adds to the style of reports: bands with a common time axis, and colours of kinds.

LOOKS = 10
"""The number of colours for kinds; further kinds reuse them."""

_LIGHT = (
    "#3a6bcb", "#14968a", "#d08a22", "#9a62b4", "#5f7f95", "#4d7d48", "#b0789a", "#8a8a2e", "#b5534a", "#7a6a5a",
)  # fmt: skip
_DARK = (
    "#6f9df0", "#35b0a0", "#dd9a3c", "#b884cf", "#8fb0c6", "#7fb378", "#d79cbd", "#bcbc5a", "#e0837a", "#ad9c8a",
)  # fmt: skip


def _variables(colours: tuple[str, ...], path: str, heat: str) -> str:
    return "".join(f"--k{n}: {colour}; " for n, colour in enumerate(colours)) + f"--path: {path}; --heat: {heat};"


_DARK_VARIABLES = _variables(_DARK, "#ffffff", "#f08a5d")

STYLE = (
    f"""
:root {{ {_variables(_LIGHT, "#101010", "#b8401f")} }}
@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {_DARK_VARIABLES} }} }}
@media screen {{ :root[data-theme="dark"] {{ {_DARK_VARIABLES} }} }}
{"".join(f".k{n} {{ --look: var(--k{n}); }} " for n in range(LOOKS))}
"""
    + """
main { max-width: 1560px; }
.chart { touch-action: pan-y; user-select: none; -webkit-user-select: none; }
.band { position: relative; margin-left: var(--side); border-bottom: 1px solid var(--line); }
.band.axis { position: sticky; top: 0; z-index: 2; height: 42px; background: var(--card); cursor: ew-resize; }
.band canvas { position: absolute; inset: 0; width: 100%; height: 100%; cursor: grab; }
.band.axis canvas { cursor: ew-resize; }
.moving canvas { cursor: grabbing !important; }
.side { position: absolute; right: 100%; width: var(--side); padding-right: 10px; overflow: hidden; color: var(--soft);
  font-size: 11px; line-height: 12px; text-align: right; text-overflow: ellipsis; white-space: nowrap; }
.side.machine { top: 4px; padding-right: 0; text-align: left; color: var(--ink); font-size: 12px; font-weight: 600;
  width: calc(var(--side) - var(--lane) + 8px); right: calc(100% + var(--lane) - 8px); }
.band > .side:not(.machine) { width: var(--lane); }
.band > .side.whole, .links .band > .side { width: var(--side); }
.tools { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 16px; margin: 0 0 10px; font-size: 13px;
  color: var(--soft); }
.tools button { min-width: 32px; padding: 4px 10px; border: 1px solid var(--line); border-radius: 8px;
  color: var(--ink); background: var(--track); font: inherit; cursor: pointer; }
.tools .buttons { display: flex; gap: 4px; margin-left: auto; }
.mark::before { content: ""; display: inline-block; width: 12px; height: 8px; margin-right: 7px; border-radius: 2px;
  border: 2px solid var(--path); }
.scale { display: inline-block; width: 90px; height: 9px; margin: 0 6px; border-radius: 2px;
  background: linear-gradient(90deg, var(--track), var(--heat)); }
@media (max-width: 700px) {
  /* Names of machines and links stand above their bands: beside them there is no room. */
  .chart { --side: clamp(84px, var(--lane), 110px) !important; }
  .band:not(.axis):not(.chain) { margin-top: 18px; }
  .side.machine { top: -15px; right: auto; left: calc(-1 * var(--side)); width: calc(100% + var(--side)); }
  .chart.links { --side: 60px !important; }
  .links .band:not(.axis) { margin-left: 0; }
  .links .band:not(.axis) > .side { top: -14px !important; right: auto; left: 0; width: 100%; text-align: left; }
}
"""
)


_UNITS = 10_000_000  # the makespan in whole numbers
_SLOTS = 800
_LETTER = 6.6  # pixels, of the labels' letters
_GAP, _STRIP, _TALLEST = 3, 14, 130  # pixels


class Drawing(NamedTuple):
    """HTML of the bands, the script's data, and what a legend needs."""

    machines: str
    links: str
    data: str
    kinds: list[tuple[str, str]]  # those drawn: name, colour's class
    slots: int
    unused: int  # links that carry nothing
    sides: tuple[int, int, int]  # pixels for labels: of lanes, of machines and their lanes, of links


def drawing_of(timeline: Timeline, laid: Merged, path: Sequence[CriticalStep]) -> Drawing:
    """Everything the script draws: the axis, the critical path, the machines and the links."""
    kinds = list(dict.fromkeys([*timeline.load.task_kinds, *timeline.load.flow_kinds]))
    names: dict[str, int] = {}
    writer = _Writer(timeline.makespan, {kind: place for place, kind in enumerate(kinds)}, names)
    bands: list[dict[str, Any]] = []
    machines = [_axis(bands), _chain(bands, path, writer)]
    machines += [_machine(bands, band, writer, len(laid.bands)) for band in laid.bands]
    use = np.rint(link_use_over_time(timeline, _SLOTS) * 100).astype(int)
    carrying = np.flatnonzero(timeline.link_bytes)
    links = [_axis(bands)] + [_link(bands, timeline.network.link_names[link], use[link]) for link in carrying.tolist()]
    looks = [(kind, f"k{place % LOOKS}") for place, kind in enumerate(kinds)]
    seen = {bar.kind for band in laid.bands for lane in band.lanes for bar in lane.bars}
    data = {
        "makespan": timeline.makespan,
        "units": _UNITS,
        "ends": timeline.iteration_ends.tolist(),
        "kinds": looks,
        "names": list(names),
        "bands": bands,
        "waits": [f"shared {step.waited_for}: {seconds(step.waited)} longer" if step.waited else "" for step in path],
    }
    # "<" is escaped, so that a name cannot close the script element.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    drawn = "".join(links) if len(carrying) else ""
    return Drawing(
        "".join(machines),
        drawn,
        text,
        [look for look in looks if look[0] in seen],
        _SLOTS,
        len(use) - len(carrying),
        _sides(laid, [timeline.network.link_names[link] for link in carrying.tolist()]),
    )


def _sides(laid: Merged, links: Sequence[str]) -> tuple[int, int, int]:
    """Pixels for the longest labels, limited so that most of the page is left to the bars."""
    lanes = _room((lane.label for band in laid.bands for lane in band.lanes), 40, 160)
    machines = _room((band.machine for band in laid.bands), 40, 160)
    return lanes, lanes + machines, _room(links, 96, 300)


def _room(names: Iterable[str], least: int, most: int) -> int:
    return min(max(round(max(map(len, names), default=0) * _LETTER) + 14, least), most)


class _Writer(NamedTuple):
    """Writes bars as flat lists of integers, in the order of the script's fields."""

    makespan: float
    kinds: dict[str, int]
    names: dict[str, int]

    def write(self, bars: Sequence[GanttBar]) -> list[int]:
        scale = _UNITS / (self.makespan or 1.0)
        out: list[int] = []
        for bar in bars:
            name = self.names.setdefault(bar.name, len(self.names))
            out += [round(bar.start * scale), round(bar.end * scale), bar.row, self.kinds[bar.kind], bar.iteration]
            out += [name, bar.items, round(bar.bytes), int(bar.critical)]
        return out


def _axis(bands: list[dict[str, Any]]) -> str:
    bands.append({"axis": True})
    sides = (
        '<span class="side whole" style="top:1px">time</span><span class="side whole" style="top:26px">iteration</span>'
    )
    return f'<div class="band axis" data-band="{len(bands) - 1}">{sides}</div>'


def _chain(bands: list[dict[str, Any]], path: Sequence[CriticalStep], writer: _Writer) -> str:
    """The critical path as one row of its own."""
    bars = [GanttBar(step.start, step.end, step.kind, step.name, step.iteration, 1, 0.0, True) for step in path]
    bands.append({"plain": True, "lanes": [{"top": 4, "row": 20, "rows": 1, "bars": writer.write(bars)}]})
    side = '<span class="side whole" style="top:8px">critical path</span>'
    return f'<div class="band chain" data-band="{len(bands) - 1}" style="height:28px">{side}</div>'


def _machine(bands: list[dict[str, Any]], band: Band, writer: _Writer, machines: int) -> str:
    top = float(_GAP)
    lanes, sides = [], []
    for lane in band.lanes:
        row = _row_height(lane, machines)
        tall = max(row * lane.rows, 12)
        lanes.append({"top": top, "row": round(row, 3), "rows": lane.rows, "bars": writer.write(lane.bars)})
        sides.append(f'<span class="side" style="top:{top + tall / 2 - 6:g}px">{escape(lane.label)}</span>')
        top += tall + _GAP
    bands.append({"lanes": lanes})
    name = f'<span class="side machine" title="{escape(band.machine)}">{escape(band.machine)}</span>'
    height = max(top, 22)
    return f'<div class="band" data-band="{len(bands) - 1}" style="height:{height:g}px">{name}{"".join(sides)}</div>'


def _row_height(lane: GanttLane, machines: int) -> float:
    """Pixels: lanes of many rows, and clusters of many machines, get flat rows."""
    room = 120 if machines <= 4 else 60 if machines <= 8 else 48
    return min(14.0, max(1.5, room / lane.rows), _TALLEST / lane.rows)


def _link(bands: list[dict[str, Any]], name: str, use: np.ndarray[Any, Any]) -> str:
    bands.append({"link": name, "use": use.tolist()})
    side = f'<span class="side" style="top:1px" title="{escape(name)}">{escape(name)}</span>'
    return f'<div class="band" data-band="{len(bands) - 1}" style="height:{_STRIP}px">{side}</div>'


# The script that draws the bands: the part of time in view, what a pointer shows, zooming and moving.

SCRIPT = """
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("bars").textContent);
  const root = document.documentElement, tip = document.getElementById("tip");
  const [START, END, ROW, KIND, ITERATION, NAME, COUNT, BYTES, CRITICAL, FIELDS] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
  const UNITS = data.units, least = 1e-5;
  let from = 0, to = 1, lit = -1, colours = {}, asked = false;

  const bands = [...document.querySelectorAll(".band")].map((node) => {
    const canvas = node.appendChild(document.createElement("canvas"));
    return { node, canvas, pen: canvas.getContext("2d"), ...data.bands[Number(node.dataset.band)] };
  });

  const words = (value, units) => {
    for (const [size, unit] of units) if (Math.abs(value) >= size) return (value / size).toPrecision(3) + " " + unit;
    return "0 " + units[units.length - 1][1];
  };
  const seconds = (value) => words(value, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]);
  const bytes = (value) => words(value, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]);

  const readColours = () => {
    const style = getComputedStyle(root), value = (name) => style.getPropertyValue("--" + name).trim();
    colours = Object.fromEntries(["ink", "soft", "line", "track", "path", "heat", "card"].map((n) => [n, value(n)]));
    colours.kinds = data.kinds.map(([, look]) => value(look));
  };

  const drawBars = (band, pen, width) => {
    const scale = width / (to - from) / UNITS, shift = from * UNITS;
    for (const lane of band.lanes) {
      pen.globalAlpha = 1;
      pen.fillStyle = colours.track;
      pen.fillRect(0, lane.top, width, lane.row * lane.rows);
      const bars = lane.bars, marked = [];
      for (let at = 0; at < bars.length; at += FIELDS) {
        const left = (bars[at + START] - shift) * scale, right = (bars[at + END] - shift) * scale;
        if (right < 0 || left > width) continue;
        const top = lane.top + bars[at + ROW] * lane.row, tall = lane.row > 3 ? lane.row - 1 : lane.row;
        const wide = Math.max(right - left - (right - left > 3 ? 0.6 : 0), 0.7);
        // Neighbouring iterations differ in strength, so that where one ends is seen.
        pen.globalAlpha = lit >= 0 && bars[at + ITERATION] !== lit ? 0.16 : bars[at + ITERATION] % 2 ? 0.72 : 1;
        pen.fillStyle = colours.kinds[bars[at + KIND]];
        pen.fillRect(left, top, wide, tall);
        if (bars[at + CRITICAL] && !band.plain) marked.push([left, top, wide, tall]);
      }
      pen.globalAlpha = 1;
      pen.fillStyle = pen.strokeStyle = colours.path;
      for (const [left, top, wide, tall] of marked) {
        pen.lineWidth = 1.6;
        if (tall >= 6 && wide > 4) pen.strokeRect(left + 0.8, top + 0.8, wide - 1.6, tall - 1.6);
        else pen.fillRect(left, top, wide, Math.min(tall, 2));
      }
    }
    if (band.plain) drawNames(band.lanes[0], pen, width, scale, shift);
  };

  const drawNames = (lane, pen, width, scale, shift) => {
    pen.fillStyle = colours.card;
    pen.font = "600 11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (let at = 0; at < lane.bars.length; at += FIELDS) {
      const left = Math.max(0, (lane.bars[at + START] - shift) * scale);
      const room = Math.min(width, (lane.bars[at + END] - shift) * scale) - left;
      const text = data.names[lane.bars[at + NAME]];
      if (room > 20 && pen.measureText(text).width < room - 8) pen.fillText(text, left + 4, lane.top + lane.row / 2);
    }
  };

  const drawHeat = (band, pen, width) => {
    const slots = band.use.length, each = width / (to - from) / slots;
    pen.fillStyle = colours.track;
    pen.fillRect(0, 1, width, band.tall - 2);
    pen.fillStyle = colours.heat;
    for (let slot = Math.floor(from * slots); slot < Math.min(slots, to * slots); slot++) {
      pen.globalAlpha = Math.min(1, band.use[slot] / 100);
      const left = Math.floor((slot - from * slots) * each), right = Math.floor((slot + 1 - from * slots) * each);
      pen.fillRect(left, 1, Math.max(right - left, 1), band.tall - 2);
    }
    pen.globalAlpha = 1;
  };

  const step = (rough) => {
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].find((digit) => digit * power >= rough * 0.999) * power;
  };
  const drawAxis = (band, pen, width) => {
    const span = (to - from) * data.makespan, every = step(span * 90 / width), at = (time) =>
      (time / data.makespan - from) / (to - from) * width;
    const unit = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]
      .find(([size]) => to * data.makespan >= size) || [1e-9, "ns"];
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "top";
    pen.fillStyle = colours.soft;
    for (let n = Math.ceil(from * data.makespan / every); n * every <= to * data.makespan * 1.0001; n++) {
      const left = at(n * every);
      pen.fillRect(left, 16, 1, 5);
      pen.textAlign = left < 20 ? "left" : left > width - 20 ? "right" : "center";
      pen.fillText(Number((n * every / unit[0]).toPrecision(9)) + " " + unit[1], left, 2);
    }
    pen.fillStyle = colours.ink;
    pen.textAlign = "right";
    let last = -99, mark = -99;
    data.ends.forEach((end, iteration) => {
      const left = at(end);
      if (left < 0 || left > width + 1 || left - mark < 3) return;
      pen.fillRect(left - 1, 36, 1.5, 6);
      mark = left;
      if (left - last < pen.measureText(iteration).width + 14) return;
      pen.fillText(iteration, left - 4, 27);
      last = left;
    });
    pen.textAlign = "left";
  };

  const draw = () => {
    asked = false;
    for (const band of bands) {
      const box = band.node.getBoundingClientRect(), sharp = devicePixelRatio || 1;
      band.canvas.width = Math.round(box.width * sharp);
      band.canvas.height = Math.round(box.height * sharp);
      band.tall = box.height;
      band.pen.setTransform(sharp, 0, 0, sharp, 0, 0);
      (band.axis ? drawAxis : band.use ? drawHeat : drawBars)(band, band.pen, box.width);
    }
  };
  const redraw = () => { if (!asked) { asked = true; requestAnimationFrame(draw); } };

  const view = (left, size) => {
    size = Math.min(1, Math.max(least, size));
    from = Math.min(Math.max(0, left), 1 - size);
    to = from + size;
    redraw();
  };
  const zoom = (factor, place = 0.5) => {
    const size = Math.min(1, Math.max(least, (to - from) * factor));
    view(from + (to - from - size) * place, size);
  };

  const found = (band, x, y) => {
    const time = (from + x * (to - from)) * UNITS, slack = (to - from) * UNITS * 0.0015;
    const lane = (band.lanes || []).find((each) => y >= each.top && y < each.top + each.row * each.rows);
    if (!lane) return null;
    const row = Math.floor((y - lane.top) / lane.row);
    for (let at = 0; at < lane.bars.length; at += FIELDS) {
      const here = lane.bars[at + START] - slack <= time && time <= lane.bars[at + END] + slack;
      if (here && lane.bars[at + ROW] === row) return lane.bars.slice(at, at + FIELDS).concat(at / FIELDS);
    }
    return null;
  };
  const told = (band, x, y) => {
    if (band.use) {
      const slot = Math.min(band.use.length - 1, Math.floor((from + x * (to - from)) * band.use.length));
      const when = seconds((slot + 0.5) / band.use.length * data.makespan);
      return [band.link + ": " + band.use[slot] + " % of its rate", "around " + when];
    }
    const bar = found(band, x, y);
    if (!bar) return null;
    const start = bar[START] / UNITS * data.makespan, long = (bar[END] - bar[START]) / UNITS * data.makespan;
    const lines = [data.names[bar[NAME]] + (bar[COUNT] > 1 ? " (" + bar[COUNT] + " together)" : "")];
    lines.push(data.kinds[bar[KIND]][0] + " · iteration " + bar[ITERATION]);
    lines.push(seconds(long) + ", from " + seconds(start) + " to " + seconds(start + long));
    if (bar[BYTES]) lines.push(bytes(bar[BYTES]) + ", " + bytes(bar[BYTES] / long) + "/s");
    if (band.plain && data.waits[bar[FIELDS]]) lines.push(data.waits[bar[FIELDS]]);
    else if (bar[CRITICAL]) lines.push("on the critical path");
    return Object.assign(lines, { iteration: bar[ITERATION] });
  };
  const point = (event, lines) => {
    tip.hidden = !lines;
    const next = lines && lines.iteration !== undefined ? lines.iteration : -1;
    if (next !== lit) { lit = next; redraw(); }
    if (!lines) return;
    tip.replaceChildren(...lines.map((text) => Object.assign(document.createElement("div"), { textContent: text })));
    const box = tip.getBoundingClientRect(), room = root.clientWidth;
    const left = event.clientX + 14 + box.width < room ? event.clientX + 14 : event.clientX - 14 - box.width;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = Math.max(8, event.clientY - box.height - 14) + "px";
  };

  for (const band of bands) {
    let held = null;
    const place = (event) => {
      const box = band.node.getBoundingClientRect();
      return [(event.clientX - box.left) / box.width, event.clientY - box.top];
    };
    band.canvas.addEventListener("pointerdown", (event) => {
      held = [place(event)[0], from];
      band.canvas.setPointerCapture(event.pointerId);
      band.node.classList.add("moving");
    });
    const drop = () => { held = null; band.node.classList.remove("moving"); };
    band.canvas.addEventListener("pointerup", drop);
    band.canvas.addEventListener("pointercancel", drop);
    band.canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event);
      if (held) { point(event, null); view(held[1] - (x - held[0]) * (to - from), to - from); }
      else point(event, told(band, x, y));
    });
    band.canvas.addEventListener("pointerleave", (event) => point(event, null));
    band.canvas.addEventListener("dblclick", (event) => zoom(event.shiftKey ? 4 : 0.25, place(event)[0]));
    band.canvas.addEventListener("wheel", (event) => {
      const across = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      // A plain wheel scrolls the page, as long charts need it to; over the axis there is nothing to scroll.
      if (!across && !event.ctrlKey && !event.altKey && !band.axis) return;
      event.preventDefault();
      if (across) view(from + event.deltaX / band.canvas.clientWidth * (to - from), to - from);
      else zoom(Math.exp(Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 100) * 0.004), place(event)[0]);
    }, { passive: false });
  }

  const acts = { in: () => zoom(0.5), out: () => zoom(2), all: () => view(0, 1),
    left: () => view(from - (to - from) * 0.3, to - from), right: () => view(from + (to - from) * 0.3, to - from) };
  for (const button of document.querySelectorAll("[data-act]")) button.onclick = acts[button.dataset.act];
  const keys = { "+": "in", "=": "in", "-": "out", "0": "all", ArrowLeft: "left", ArrowRight: "right" };
  addEventListener("keydown", (event) => {
    if (keys[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) acts[keys[event.key]]();
  });

  const dress = () => { readColours(); redraw(); };
  new MutationObserver(dress).observe(root, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress);
  addEventListener("resize", redraw);
  readColours();
  draw();
  root.dataset.drawn = "yes";
})();
"""
