"use strict";
// Draws the steps in the page's data on one time axis. Drag moves, the wheel with Ctrl or Shift zooms, so
// that the page still scrolls; + - 0 and the arrow keys do the same.
function timeline(root) {
  const data = JSON.parse(root.querySelector("script").textContent);
  const canvas = root.querySelector("canvas"), tip = root.querySelector(".tip");
  const ROW = 20, GAP = 14, TOP = 24, LEFT = 108, NAMED = 46;  // pixels
  const whole = Math.max(...data.steps.map((step) => step.length_us));
  const lines = [];                      // {label, bars, y, variant}
  let height = TOP, from = 0, span = whole;

  for (const step of data.steps) {
    const outside = step.rows.length ? [] : [[0, step.length_us, -1, -1]];  // beside a device it is no part
    const own = { label: step.variant, bars: [...outside, ...step.host.flat()], bold: true };
    const nested = step.host.map((bars, depth) => (
      { label: depth ? "" : "ops, by caller", bars, called: step.host[depth + 1] || [] }));
    for (const line of [own, ...nested, ...step.rows]) {
      lines.push({ ...line, y: height, variant: step.variant });
      height += ROW;
    }
    height += GAP;
  }

  const kindOf = (bar) => (bar[2] < 0 ? "python" : data.kinds[bar[2]]);
  const nameOf = (bar) => (bar[3] >= 0 ? data.names[bar[3]] : bar[2] < 0 ? "outside ops" : kindOf(bar).replaceAll("_", " "));
  const duration = (us) => (us >= 1000 ? (us / 1000).toFixed(us >= 10000 ? 1 : 2) + " ms" : us.toFixed(1) + " us");
  const width = () => canvas.clientWidth;
  const scale = () => (width() - LEFT - 8) / span;
  const at = (us) => LEFT + (us - from) * scale();
  const timeAt = (x) => from + (x - LEFT) / scale();

  function fitting(g, label) {           // engines name a step by its whole batch
    const fits = (text) => g.measureText(text).width <= LEFT - 14;
    let shown = label;
    while (!fits(shown) && shown.length > 2) shown = shown.slice(0, -2) + "\u2026";
    return shown;
  }

  function onTop(colour) {               // black or white, whichever is read more easily on it
    const [r, gr, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
    return 0.3 * r + 0.59 * gr + 0.11 * b > 125 ? "#000" : "#fff";
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1, style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink"), soft = style.getPropertyValue("--soft"), line = style.getPropertyValue("--line"), paper = style.getPropertyValue("--paper");
    canvas.width = width() * ratio;
    canvas.height = height * ratio;
    canvas.style.height = height + "px";
    const g = canvas.getContext("2d");
    g.scale(ratio, ratio);
    g.clearRect(0, 0, width(), height);
    axis(g, soft, line);
    for (const row of lines) {
      g.fillStyle = row.bold ? ink : soft;
      g.font = (row.bold ? "600 " : "") + "12px system-ui, sans-serif";
      g.textAlign = "left";
      g.fillText(fitting(g, row.label), 8, row.y + ROW * 0.68);
      g.save();
      g.beginPath();
      g.rect(LEFT, row.y, width() - LEFT, ROW);
      g.clip();
      for (const bar of row.bars) {      // in a row of all ops the inner ones lie over the name of the outer
        paint(g, bar, row, data.colours[kindOf(bar)]);
        if (!row.called) name(g, bar, row, onTop(data.colours[kindOf(bar)]));
      }
      if (row.called) own(g, row, ink, paper);
      g.restore();
    }
  }

  function axis(g, soft, line) {
    const rough = span / Math.max(2, (width() - LEFT) / 110), power = 10 ** Math.floor(Math.log10(rough));
    const every = power * [1, 2, 5, 10].find((n) => n * power >= rough);
    g.font = "11px system-ui, sans-serif";
    g.textAlign = "center";
    for (let us = Math.ceil(from / every) * every; us <= from + span; us += every) {
      g.fillStyle = line;
      g.fillRect(at(us), TOP - 6, 1, height - TOP);
      g.fillStyle = soft;
      const last = us + every > from + span;
      g.fillText(+(us / 1000).toPrecision(6) + (last ? " ms" : ""), Math.min(at(us), width() - 24), 14);
    }
  }

  // What an op calls is not its own time: only that keeps its full colour.
  function own(g, row, ink, paper) {
    g.globalAlpha = 0.6;
    for (const bar of row.called) paint(g, bar, row, paper);
    g.globalAlpha = 1;
    for (const bar of row.bars) {
      if (bar[1] * scale() <= NAMED) continue;
      const inside = row.called.filter((b) => b[0] >= bar[0] && b[0] + b[1] <= bar[0] + bar[1]);
      const pale = inside.reduce((sum, b) => sum + b[1], 0) > bar[1] / 2;
      name(g, bar, row, pale ? ink : onTop(data.colours[kindOf(bar)]));
    }
  }

  function paint(g, bar, row, colour) {
    const x = at(bar[0]), w = bar[1] * scale();
    if (x > width() || x + w < LEFT) return;
    g.fillStyle = colour;
    g.fillRect(x, row.y + 2, Math.max(w, 0.4), ROW - 4);
  }

  function name(g, bar, row, colour) {
    const x = at(bar[0]), w = bar[1] * scale();
    if (x > width() || x + w < LEFT || w <= NAMED || bar[3] < 0) return;
    const left = Math.max(x, LEFT), text = nameOf(bar);
    if (g.measureText(text).width > Math.min(x + w, width()) - left - 6) return;
    g.fillStyle = colour;
    g.fillText(text, left + 3, row.y + ROW * 0.68);
  }

  function found(x, y) {
    const row = lines.find((candidate) => y >= candidate.y && y < candidate.y + ROW);
    if (!row || x < LEFT) return null;
    const near = 1.5 / scale(), time = timeAt(x);
    const bar = row.bars.findLast((b) => time >= b[0] && time <= b[0] + b[1])
      || row.bars.findLast((b) => time >= b[0] - near && time <= b[0] + b[1] + near);
    return bar ? { row, bar } : null;
  }

  function show(event) {
    const hit = found(event.offsetX, event.offsetY);
    tip.style.display = hit ? "block" : "none";
    if (!hit) return;
    const [start, length] = hit.bar;
    tip.textContent = `${nameOf(hit.bar)} \u00b7 ${kindOf(hit.bar).replaceAll("_", " ")} \u00b7 ${duration(length)}, `
      + `from ${duration(start)} of ${hit.row.variant}`;
    tip.style.left = Math.min(event.offsetX + 14, width() - tip.offsetWidth - 4) + "px";
    tip.style.top = canvas.offsetTop + event.offsetY + 18 + "px";
  }

  function move(start, length) {
    span = Math.min(whole, Math.max(20, length));
    from = Math.min(whole - span, Math.max(0, start));
    tip.style.display = "none";
    draw();
  }
  const zoom = (factor, centre = from + span / 2) => move(centre - (centre - from) * factor, span * factor);

  let dragged = null;
  canvas.addEventListener("pointerdown", (e) => { dragged = { x: e.clientX, from }; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointerup", () => { dragged = null; });
  canvas.addEventListener("pointermove", (e) => {
    if (dragged) move(dragged.from - (e.clientX - dragged.x) / scale(), span);
    else show(e);
  });
  canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  canvas.addEventListener("dblclick", (e) => {
    const hit = found(e.offsetX, e.offsetY);
    if (hit) move(hit.bar[0] - hit.bar[1] * 0.1, hit.bar[1] * 1.2);
  });
  canvas.addEventListener("wheel", (e) => {
    if (!e.ctrlKey && !e.shiftKey) return;
    e.preventDefault();
    zoom((e.deltaY || e.deltaX) > 0 ? 1.25 : 0.8, timeAt(e.offsetX));
  }, { passive: false });
  const keys = {
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => move(0, whole),
    ArrowLeft: () => move(from - span / 5, span), ArrowRight: () => move(from + span / 5, span),
  };
  canvas.addEventListener("keydown", (e) => { if (keys[e.key]) { e.preventDefault(); keys[e.key](); } });
  for (const button of root.querySelectorAll("button")) button.addEventListener("click", () => keys[button.dataset.key]());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", draw);
  draw();
}
document.querySelectorAll(".timeline").forEach(timeline);
