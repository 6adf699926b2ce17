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
