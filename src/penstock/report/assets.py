"""The style sheet and the script of every page."""


# The page's style sheet: one column on a phone, two on a screen, light or dark as the reader's system is.

_DARK = """
  color-scheme: dark;
  --paper: #0d1315; --card: #141c1f; --ink: #e6eceb; --soft: #98a7aa; --line: #232e32; --track: #1d272b;
  --tip: #e6eceb; --tip-ink: #10181a;
  --good: #56c8a0; --warn: #e4b355; --bad: #f0837a; --going: #6fb1f0;
  --c1: #4cc0b0; --c2: #8b9cf5; --c3: #e0a458; --c4: #d783c0; --c5: #8fb98a;
  --seeds: #8a9ba1; --sample: #35b0a0; --gather: #dd9a3c; --transfer: #b884cf; --compute: #5f90e8; --other: #6d7d83;
  --forward: #5f90e8; --exchange: #dd9a3c; --backward: #35b0a0; --update: #b884cf;
"""

STYLE = (
    f"""
:root {{
  color-scheme: light;
  --paper: #f4f6f5; --card: #ffffff; --ink: #182226; --soft: #5b696e; --line: #e2e8e7; --track: #edf1f0;
  --tip: #182226; --tip-ink: #f4f6f5;
  --good: #12805c; --warn: #94630a; --bad: #b5382e; --going: #2368ae;
  --c1: #0f7c72; --c2: #4557b8; --c3: #b0701a; --c4: #a4458a; --c5: #4d7d48;
  --seeds: #8d9ca1; --sample: #14968a; --gather: #d08a22; --transfer: #9a62b4; --compute: #3a6bcb; --other: #6d7d83;
  --forward: #3a6bcb; --exchange: #d08a22; --backward: #14968a; --update: #9a62b4;
}}
@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{{_DARK}}} }}
@media screen {{ :root[data-theme="dark"] {{{_DARK}}} }}
"""
    + """
* { box-sizing: border-box; }
[hidden] { display: none !important; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", "Liberation Sans", Arial, sans-serif; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere;
}
main { max-width: 1120px; margin: 0 auto; padding: 20px 16px 40px; }
h1, h2, p, dl, dd, ul, figure { margin: 0; padding: 0; }
small { font-size: 13px; }
svg { display: block; }

header { --state: var(--soft); padding: 4px 4px 28px; }
header.good { --state: var(--good); } header.warn { --state: var(--warn); }
header.bad { --state: var(--bad); } header.going { --state: var(--going); }
.top { display: flex; justify-content: space-between; align-items: center; min-height: 40px; }
.state { color: var(--soft); font-size: 14px; }
.state b { color: var(--state); font-weight: 600; }
.state b::before {
  content: ""; display: inline-block; width: 9px; height: 9px; margin-right: 8px; border-radius: 50%;
  background: var(--state);
}
.state span::before { content: "·"; margin: 0 8px; }
#theme { padding: 10px; margin-right: -10px; border: 0; border-radius: 10px; background: none; cursor: pointer; }
#theme:hover { background: var(--track); }
#theme svg { width: 20px; fill: none; stroke: var(--soft); stroke-width: 1.5; }
#theme path { fill: var(--soft); stroke: none; }
.hero { display: flex; flex-wrap: wrap; justify-content: space-between; align-items: flex-end; gap: 16px 40px; }
.hero > div { flex: 1 1 300px; }
h1 { margin: 10px 0 4px; font-size: clamp(26px, 5vw, 38px); font-weight: 650; line-height: 1.15;
  letter-spacing: -.02em; }
.sub { color: var(--soft); }
.sub span { display: inline-block; }
.figure b {
  display: block; margin-top: 14px; font-size: clamp(56px, 10vw, 84px); font-weight: 300; line-height: .95;
  letter-spacing: -.045em; color: var(--c1);
}
.figure small { margin-left: .12em; font-size: .42em; letter-spacing: 0; }
.figure span { display: block; margin-top: 6px; color: var(--soft); }
.banner {
  margin: 10px 0 14px; padding: 12px 16px; border-left: 4px solid var(--line); border-radius: 4px 10px 10px 4px;
  background: var(--card); white-space: pre-wrap;
}
.banner.bad { border-color: var(--bad); } .banner.warn { border-color: var(--warn); }
.banner.going { border-color: var(--going); }
.banner.bad b, b.bad { color: var(--bad); } .banner.warn b { color: var(--warn); }
.banner.going b { color: var(--going); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(128px, 1fr)); gap: 16px 20px; margin-top: 28px;
  padding-top: 18px; border-top: 1px solid var(--line); }
dt { color: var(--soft); font-size: 13px; }
.figures dd { font-size: 20px; font-weight: 550; letter-spacing: -.01em; }
.limit { --stage: var(--other); margin-top: 22px; padding-left: 14px; border-left: 4px solid var(--stage);
  font-size: 17px; }

.cards { display: grid; grid-template-columns: minmax(0, 1fr); gap: 16px; }
.card { padding: 18px 18px 16px; border: 1px solid var(--line); border-radius: 14px; background: var(--card);
  min-width: 0; }
h2 { margin-bottom: 14px; font-size: 16px; font-weight: 650; }
.about { margin-left: 10px; color: var(--soft); font-size: 13px; font-weight: 400; }
.foot { margin-top: 14px; color: var(--soft); font-size: 13px; }
.none { color: var(--soft); }
.columns-of-cards { display: grid; grid-template-columns: minmax(0, 1fr); gap: 16px; }
@media (min-width: 820px) {
  .cards { gap: 20px; }
  .columns-of-cards { display: block; columns: 2; column-gap: 20px; }
  .columns-of-cards > .card { break-inside: avoid; }
  .columns-of-cards > .card + .card { margin-top: 20px; }
  main { padding: 28px 28px 56px; }
  .card { padding: 20px 22px 18px; }
}

.card { display: flex; flex-direction: column; }
h3 { margin: 12px 0 2px; font-size: 13px; font-weight: 600; }
h3 .about { margin: 0 16px 0 8px; }
.plot { position: relative; flex: none; height: 220px; margin: 10px 8px 26px 44px; touch-action: pan-y; }
.plot > svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.plot path { fill: none; stroke: var(--look); stroke-width: 2; vector-effect: non-scaling-stroke;
  stroke-linejoin: round; stroke-linecap: round; }
.plot .grid { stroke: var(--line); stroke-width: 1; }
.plot .behind { stroke: var(--c1); stroke-width: 1; opacity: .42; }
.plot .area { fill: var(--look); stroke: none; opacity: .12; }
.column { fill: var(--look); opacity: .85; }
.x, .y, .lane, .batch { position: absolute; font-size: 12px; line-height: 1; color: var(--soft); white-space: nowrap;
  pointer-events: none; }
.y { right: 100%; margin-right: 8px; transform: translateY(-50%); }
.x { top: 100%; margin-top: 9px; transform: translateX(-50%); }
.dot, .best { position: absolute; width: 9px; height: 9px; margin: -4.5px 0 0 -4.5px; border-radius: 50%;
  background: var(--look); box-shadow: 0 0 0 2px var(--card); pointer-events: none; }
.best { --look: var(--c2); }
.best b { position: absolute; font-size: 12px; font-style: normal; font-weight: 600; line-height: 1;
  white-space: nowrap;  color: var(--c2); text-shadow: 0 0 3px var(--card), 0 0 3px var(--card), 0 0 3px var(--card); }
.best.above b { bottom: 15px; } .best.below b { top: 17px; }
.best.left b { right: 0; } .best.right b { left: 0; }
.cross { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--soft); opacity: .9;
  pointer-events: none; }
.c1 { --look: var(--c1); } .c2 { --look: var(--c2); } .c3 { --look: var(--c3); } .c4 { --look: var(--c4); }
.c5 { --look: var(--c5); }
.seeds { --stage: var(--seeds); --look: var(--seeds); } .sample { --stage: var(--sample); --look: var(--sample); }
.gather { --stage: var(--gather); --look: var(--gather); } .compute { --stage: var(--compute); --look: var(--compute); }
.transfer { --stage: var(--transfer); --look: var(--transfer); } .other { --stage: var(--other); --look: var(--other); }
.forward { --stage: var(--forward); --look: var(--forward); }
.exchange { --stage: var(--exchange); --look: var(--exchange); }
.backward { --stage: var(--backward); --look: var(--backward); }
.update { --stage: var(--update); --look: var(--update); }
.key::before { content: ""; display: inline-block; width: 10px; height: 10px; margin-right: 7px; border-radius: 3px;
  background: var(--look); }
.plot ~ h3 ~ .plot { height: 130px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 0 28px; }
.charts .plot { height: 160px; }
.charts + table { margin-top: 12px; }
.foot .key { display: inline-block; margin-right: 16px; }

.stages { list-style: none; display: grid; gap: 14px; }
.stages li > div:first-child { display: flex; align-items: baseline; gap: 8px; white-space: nowrap; }
.stages strong { margin-left: auto; font-weight: 600; }
.stages em { padding: 1px 8px; border-radius: 9px; background: var(--stage); color: var(--card); font-size: 12px;
  font-style: normal; font-weight: 600; }
.stages small { color: var(--soft); }
.meter { position: relative; height: 14px; margin: 5px 0 4px; border-radius: 7px; overflow: hidden; }
.meter::before { content: ""; position: absolute; inset: 0; background: var(--stage); opacity: .17; }
.meter i { position: absolute; top: 0; bottom: 0; left: 0; background: var(--stage); }
.meter.off::before { background: var(--track); opacity: 1; }
@media (min-width: 820px) {
  .stages { gap: 10px; }
  .stages li { display: grid; grid-template-columns: 210px minmax(0, 1fr) 400px; gap: 22px; align-items: center; }
}

.lanes { flex: none; margin: 0 0 30px; }
.lane { left: 0; max-width: 100%; overflow: hidden; text-overflow: ellipsis; line-height: 1.2; }
.track { fill: var(--track); }
.bar { fill: var(--stage); stroke: var(--card); stroke-width: 1; vector-effect: non-scaling-stroke; }
.thin { stroke: var(--stage); }
.following .bar { opacity: .3; } .following .bar.lit { opacity: 1; }
.batch { height: 20px; line-height: 20px; transform: translateX(-50%); color: var(--card); font-weight: 600; }

table { width: 100%; border-collapse: collapse; font-size: 14px; }
.table { overflow-x: auto; }
.pairs + .table, .table + .table, .plot + table { margin-top: 18px; }
th, td { padding: 7px 0 7px 16px; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top;
  overflow-wrap: break-word; }
th { color: var(--soft); font-size: 13px; font-weight: 400; }
th:first-child, td:first-child { padding-left: 0; text-align: left; }
td:first-child { min-width: 8em; overflow-wrap: anywhere; }
td:not(:first-child) { white-space: nowrap; }
@media (max-width: 560px) {
  .many thead { display: none; }
  .many tr { display: block; padding: 7px 0; border-bottom: 1px solid var(--line); }
  .many td, .many td:first-child { display: flex; justify-content: space-between; gap: 16px; padding: 2px 0; border: 0;
    text-align: right; white-space: normal; }
  .many td:first-child { font-weight: 600; }
  .many td::before { content: attr(data-name); flex: none; color: var(--soft); font-weight: 400; }
  .many td:empty, .many tr:last-child { border-bottom: 0; }
  .many td:empty { display: none; }
}
.pairs { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 240px), 1fr)); gap: 0 28px; }
.pairs div { display: flex; justify-content: space-between; gap: 16px; padding: 7px 0;
  border-bottom: 1px solid var(--line); }
.pairs dt { flex: none; max-width: 55%; font-size: 14px; }
.pairs dd { min-width: 0; text-align: right; font-size: 14px; overflow-wrap: anywhere; }
.chosen dd { font-weight: 600; }
.chosen small { display: inline-block; margin-left: 10px; color: var(--soft); font-weight: 400; }
details { margin-top: 14px; }
summary { color: var(--soft); cursor: pointer; padding: 6px 0; }
.notes { list-style: none; }
.notes li { padding: 6px 0; border-bottom: 1px solid var(--line); white-space: pre-wrap; }
.notes time { display: inline-block; min-width: 84px; margin-right: 8px; color: var(--soft); font-size: 13px; }
.stages + .foot, .pairs:last-child div:last-child, .notes li:last-child, tbody tr:last-child td { border-bottom: 0; }
footer { margin: 28px 4px 0; color: var(--soft); font-size: 13px; }
#tip { position: fixed; z-index: 9; max-width: 280px; padding: 8px 11px; border-radius: 9px; background: var(--tip);
  color: var(--tip-ink); font-size: 13px; line-height: 1.45; pointer-events: none; }
@media print { body { background: none; } .card { break-inside: avoid; } #theme { display: none; } }
"""
)


# The page's script: what a pointer shows, and the choice of light or dark. Without it the page reads the same.

SCRIPT = """
"use strict";
(() => {
  const root = document.documentElement, tip = document.getElementById("tip");

  const theme = document.getElementById("theme"), dark = matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => { try { return localStorage.getItem("penstock-theme"); } catch { return null; } };
  if (remembered()) root.dataset.theme = remembered();
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    // Where storage is forbidden the choice lasts as long as the page.
    try { localStorage.setItem("penstock-theme", root.dataset.theme); } catch { return; }
  });

  const line = (text, look) => {
    const row = document.createElement("div");
    row.textContent = text;
    if (look) row.className = "key " + look;
    return row;
  };
  const show = (event, rows) => {
    tip.replaceChildren(...rows);
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), room = root.clientWidth;
    const left = event.clientX + 14 + box.width < room ? event.clientX + 14 : event.clientX - 14 - box.width;
    tip.style.left = Math.max(8, Math.min(left, room - box.width - 8)) + "px";
    tip.style.top = Math.max(8, event.clientY - box.height - 14) + "px";
  };
  const hide = () => { tip.hidden = true; };

  for (const plot of document.querySelectorAll("[data-hover]")) {
    const stops = JSON.parse(plot.dataset.hover);
    if (!stops.length) continue;
    const cross = document.createElement("i");
    cross.className = "cross";
    cross.hidden = true;
    plot.append(cross);
    const point = (event) => {
      const box = plot.getBoundingClientRect(), at = (event.clientX - box.left) / box.width;
      let best = stops[0];
      for (const stop of stops) if (Math.abs(stop[0] - at) < Math.abs(best[0] - at)) best = stop;
      cross.hidden = false;
      cross.style.left = best[0] * 100 + "%";
      cross.replaceChildren(...best[2].map(([down, look]) => {
        const dot = document.createElement("i");
        dot.className = "dot " + look;
        dot.style.top = down * 100 + "%";
        return dot;
      }));
      const values = best[2].map(([, look, text]) => line(text, look));
      show(event, best[1] ? [line(best[1]), ...values] : values);
    };
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerdown", point);
    plot.addEventListener("pointerleave", () => { cross.hidden = true; hide(); });
  }

  for (const lanes of document.querySelectorAll(".lanes")) {
    let lit = [];
    const follow = (event) => {
      const bar = event.target.closest("[data-tip]");
      for (const each of lit) each.classList.remove("lit");
      lit = [];
      lanes.classList.toggle("following", Boolean(bar && bar.dataset.batch));
      if (!bar) return hide();
      if (bar.dataset.batch) lit = [...lanes.querySelectorAll(`[data-batch="${bar.dataset.batch}"]`)];
      for (const each of lit) each.classList.add("lit");
      show(event, [line(bar.dataset.tip)]);
    };
    lanes.addEventListener("pointermove", follow);
    lanes.addEventListener("pointerdown", follow);
    lanes.addEventListener("pointerleave", follow);
  }

  root.dataset.ready = "yes";
})();
"""
