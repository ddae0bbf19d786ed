// The browser's part of the page: relative times, the two curves, and the banner that shows the connection's state.
// htmx replaces the parts that the server renders.
"use strict";
(() => {
  const SILENCE_MS = 15000; // three of the server's heartbeats
  const points = { measure: "accuracy", round: [], value: [], personal: [], loss: [] };
  const charts = {};
  const byId = (id) => document.getElementById(id);

  // --- times: by the server's clock, because a board's or a reader's clock may be wrong -----------------------
  let skew = 0;
  const setClock = (seconds) => { skew = seconds - Date.now() / 1000; };
  const now = () => Date.now() / 1000 + skew;
  const two = (n) => String(n).padStart(2, "0");

  function timeOfDay(at) {
    return new Date((at - skew) * 1000).toLocaleTimeString([], { hour12: false });
  }

  function ago(at) {
    const seconds = Math.max(0, Math.round(now() - at));
    if (seconds < 2) return "just now";
    if (seconds < 60) return `${seconds} s ago`;
    return seconds < 3600 ? `${Math.floor(seconds / 60)} min ago` : `at ${timeOfDay(at)}`;
  }

  function countdown(deadline) {
    const seconds = Math.ceil(deadline - now());
    if (seconds <= 0) return "deadline passed";
    return `closes in ${Math.floor(seconds / 60)}:${two(seconds % 60)}`;
  }

  function updateTexts(name, text) {
    for (const node of document.querySelectorAll(`[data-${name}]`)) {
      const at = Number(node.dataset[name]);
      if (at) node.textContent = text(at);
    }
  }

  function tick() {
    updateTexts("at", timeOfDay);
    updateTexts("ago", ago);
    updateTexts("deadline", countdown);
  }

  function updateTitle() {
    const round = document.querySelector("[data-testid=round]");
    const name = document.querySelector("h1");
    if (round && name) document.title = `${round.textContent} · ${name.textContent} · fedquilt`;
  }

  // --- the curves ---------------------------------------------------------------------------------------------
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const percent = (v, digits) => `${(100 * v).toFixed(digits)} %`;
  const isAccuracy = () => points.measure === "accuracy";

  function yRange(u, low, high) {
    if (low === null) return [0, 1];
    const [bottom, top] = uPlot.rangeNum(low, high, 0.1, true);
    return [low >= 0 ? Math.max(0, bottom) : bottom, top];
  }

  function valueRange(u, low, high) {
    const [bottom, top] = yRange(u, low, high);
    return [bottom, isAccuracy() ? Math.min(1, top) : top];
  }

  function axis(extra) {
    const grid = { stroke: colour("--line"), width: 1 };
    return { stroke: colour("--quiet"), font: "12px system-ui, sans-serif", grid, ticks: { show: false }, ...extra };
  }

  // The legend shows the round under the pointer, or the latest measured value.
  function legend(show) {
    return (u, v, series, index) => {
      const value = index === null ? u.data[series].findLast((value) => value !== null) : v;
      return value === null || value === undefined ? "–" : show(value);
    };
  }

  function options(box, spec) {
    const stroke = colour(spec.colour);
    return {
      width: box.clientWidth,
      height: 220,
      cursor: { sync: { key: "rounds" }, y: false },
      scales: { x: { time: false, range: (u, low, high) => [low, Math.max(high, low + 4)] }, y: { range: spec.range } },
      axes: [
        axis({ incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000], space: 45, size: 34 }),
        axis({ size: 58, values: (u, ticks, index, space, step) => ticks.map((v) => spec.tick(v, step)) }),
      ],
      series: [
        { label: "Round", value: legend((v) => v) },
        { ...line(spec.label, stroke, spec.show), fill: `${stroke}1f` },
        ...(spec.second ? [line(spec.second, colour("--curve-2"), spec.show)] : []),
      ],
    };
  }

  function line(label, stroke, show) {
    const dots = { show: points.round.length <= 60, size: 6, fill: colour("--card") };
    return { label, stroke, width: 2, spanGaps: true, points: dots, value: legend(show) };
  }

  const hasPersonal = () => points.personal.some((v) => v !== null);

  const digitsFor = (step) => Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));

  function specs() {
    const plain = { tick: (v, step) => v.toFixed(digitsFor(step)), show: (v) => v.toFixed(4) };
    const share = { tick: (v, step) => percent(v, Math.max(0, digitsFor(step) - 2)), show: (v) => percent(v, 2) };
    const value = { label: isAccuracy() ? "Accuracy" : "R²", colour: "--curve", range: valueRange };
    if (hasPersonal()) Object.assign(value, { label: "Global", second: "Personal", title: "Accuracy" });
    return {
      value: { ...value, ...(isAccuracy() ? share : plain) },
      loss: { label: "Loss", colour: "--curve-2", range: yRange, ...plain },
    };
  }

  function draw(name, spec) {
    const box = byId(`${name}-chart`);
    byId(`${name}-title`).textContent = spec.title ?? spec.label;
    charts[name]?.destroy();
    delete charts[name];
    box.replaceChildren();
    if (points[name].some((v) => v !== null)) {
      const second = spec.second ? [points.personal] : [];
      charts[name] = new uPlot(options(box, spec), [points.round, points[name], ...second], box);
    } else {
      const note = document.createElement("p");
      note.className = "empty";
      note.textContent = "No measurements yet.";
      box.append(note);
    }
    box.dataset.points = points[name].filter((v) => v !== null).length;
  }

  function redraw() {
    for (const [name, spec] of Object.entries(specs())) draw(name, spec);
  }

  function onHistory(event) {
    const added = JSON.parse(event.data);
    for (const name of ["round", "value", "personal", "loss"]) {
      points[name].length = added.start;
      points[name].push(...added[name]);
    }
    points.measure = added.measure;
    redraw();
  }

  function followWidth() {
    const resize = () => Object.entries(charts).forEach(([name, chart]) => {
      const width = byId(`${name}-chart`).clientWidth;
      if (width !== chart.width) chart.setSize({ width, height: 220 });
    });
    const observer = new ResizeObserver(resize);
    observer.observe(byId("value-chart"));
    observer.observe(byId("loss-chart"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  // --- the connection -----------------------------------------------------------------------------------------
  let source = null;
  let lastHeartbeat = Date.now();

  function runIsOver() {
    const phase = document.querySelector("[data-phase]")?.dataset.phase;
    return ["finished", "failed", "stopped"].includes(phase);
  }

  function showConnection(state) {
    const live = byId("live");
    live.textContent = live.dataset.state = runIsOver() ? "ended" : state;
    const banner = byId("banner");
    banner.hidden = state !== "lost";
    banner.classList.toggle("calm", runIsOver());
    banner.textContent = runIsOver()
      ? "The coordinator has stopped. The page shows the final state of the run."
      : "Connection to the coordinator lost. The page may be out of date. Reconnecting…";
  }

  function onClock(event) {
    lastHeartbeat = Date.now();
    setClock(Number(event.data));
    showConnection("live");
  }

  // A broken network may leave the stream open without any event. Close it after a while; htmx then opens a new one.
  function checkHeartbeat() {
    if (source && Date.now() - lastHeartbeat > SILENCE_MS) {
      lastHeartbeat = Date.now();
      source.close();
      source.onerror(new Event("error"));
    }
  }

  // htmx's extension for server-sent events calls this function to open the stream.
  htmx.createEventSource = (url) => {
    source = new EventSource(url);
    source.addEventListener("clock", onClock);
    source.addEventListener("history", onHistory);
    return source;
  };

  document.addEventListener("htmx:sseError", () => showConnection("lost"));
  document.addEventListener("htmx:sseMessage", () => { tick(); updateTitle(); });
  setClock(Number(document.body.dataset.now));
  followWidth();
  tick();
  updateTitle();
  setInterval(() => { tick(); checkHeartbeat(); }, 1000);
})();
