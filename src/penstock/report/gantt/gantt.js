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
