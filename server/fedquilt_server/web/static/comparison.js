// The curves of several runs in one chart each. Every run keeps its colour and its dashes in charts, lists and tables.
import { byId, choice, element, once } from "./dom.js";
import { axisNote, setMeasure, specs, X } from "./curve_data.js";
import { colour, onTheme } from "./palette.js";
import { renew, setText } from "./renew.js";

const HEIGHT = 300;
const PAUSE_MS = 5000;
const MARKS_UP_TO = 40;
const DASHES = [[], [8, 4], [2, 3], [12, 3, 2, 3], [5, 5], [16, 5], [2, 6], [10, 3, 2, 3, 2, 3]];
const charts = {};
let data = null;
let against = "round";
let fromZero = false;

const knownCurves = (name) => data.curves.flatMap((curve, i) => (curve[name].some((v) => v !== null) ? [{ ...curve, place: i }] : []));

// Every run has points of its own, so the charts' common x axis has the points of all of them, with gaps.
function join(name, curves) {
  return uPlot.join(curves.map((curve) => {
    const kept = curve[name].flatMap((v, i) => (v === null || curve[against][i] === null ? [] : [i]));
    return [kept.map((i) => curve[against][i]), kept.map((i) => curve[name][i])];
  }));
}

function yRange(spec) {
  return (u, low, high) => {
    if (low === null) return [0, 1];
    const [bottom, top] = uPlot.rangeNum(low, high, 0.1, true);
    const floor = fromZero && low >= 0 ? 0 : low >= 0 ? Math.max(0, bottom) : bottom;
    return [floor, spec.most && high <= spec.most ? (fromZero ? spec.most : Math.min(spec.most, top)) : top];
  };
}

function axis(extra) {
  return { stroke: colour("quiet"), font: "12px system-ui, sans-serif", grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, ...extra };
}

function series(curve, spec) {
  const few = curve.round.length <= MARKS_UP_TO;
  const latest = curve[spec.column].findLast((v) => v !== null);
  const value = (u, v) => spec.show(v ?? latest);
  const points = { show: few, size: 6, fill: colour("card") };
  return { label: curve.label, stroke: colour(`run-${curve.place + 1}`), width: 2, dash: DASHES[curve.place], spanGaps: true, points, value };
}

function options(name, spec, curves, box) {
  const range = (u, low, high) => (low === null ? [0, 1] : against === "round" ? [low, Math.max(high, low + 4)] : [Math.min(low, 0), high || 1]);
  return {
    width: box.clientWidth,
    height: HEIGHT,
    cursor: { sync: { key: "runs" }, y: false },
    scales: { x: { time: false, range }, y: { range: yRange(spec) } },
    axes: [
      axis({ space: 60, size: 30, values: (u, ticks, i, space, step) => ticks.map((v) => (against === "round" && v % 1 ? "" : X[against].tick(v, step))) }),
      axis({ size: 62, values: (u, ticks, i, space, step) => ticks.map((v) => spec.tick(v, step)) }),
    ],
    series: [{ label: X[against].label, value: (u, v) => (v === null || v === undefined ? "latest" : X[against].show(v)) }, ...curves.map((one) => series(one, spec))],
    hooks: { draw: [(u) => { byId(`${name}-note`).textContent = axisNote(u, spec); }] },
  };
}

function describe(name, spec, curves) {
  const texts = curves.map((one) => {
    const all = one[name].filter((v) => v !== null);
    return `${one.label}: ${spec.show(all[all.length - 1])}, between ${spec.show(all.reduce((a, b) => Math.min(a, b)))} and ${spec.show(all.reduce((a, b) => Math.max(a, b)))}`;
  });
  return `${spec.title}. ${texts.join("; ")}. The table Scores and costs lists the last and best values.`;
}

function draw(name) {
  const spec = { ...specs()[name], column: name };
  const box = byId(`${name}-chart`);
  const curves = knownCurves(name);
  byId(`${name}-title`).textContent = spec.title;
  charts[name]?.destroy();
  delete charts[name];
  box.dataset.curves = curves.length;
  if (!curves.length) {
    box.removeAttribute("role");
    box.removeAttribute("aria-label");
    byId(`${name}-note`).textContent = "";
    box.replaceChildren(element("p", "No measurements yet.", { class: "empty" }));
    return;
  }
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", describe(name, spec, curves));
  box.replaceChildren();
  charts[name] = new uPlot(options(name, spec, curves, box), join(name, curves), box);
}

const redraw = once(() => { if (data !== null) ["value", "loss"].forEach(draw); });

function fail(text) {
  setText(byId("banner"), text);
  byId("banner").hidden = false;
  if (data === null) for (const name of ["value", "loss"]) byId(`${name}-chart`).replaceChildren(element("p", "The curves are not here.", { class: "empty" }));
}

// The tables come from the server, too: the page itself holds the newest ones.
async function refreshTables() {
  const response = await fetch(location.href, { headers: { accept: "text/html" } });
  if (!response.ok) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const part of ["compared", "results"]) {
    const [before, now] = [document, fresh].map((root) => root.querySelector(`[data-testid=${part}]`));
    if (now) renew(before, now.childNodes);
  }
}

async function refresh() {
  try {
    const response = await fetch(`api/v1/comparison${location.search}`);
    if (!response.ok) { fail(`The server cannot compare these runs: ${(await response.json()).detail}.`); return; }
    const text = await response.json();
    const changed = JSON.stringify(text) !== JSON.stringify(data);
    byId("banner").hidden = true;
    if (!changed) return;
    const first = data === null;
    data = text;
    setMeasure(data);
    redraw();
    if (!first) await refreshTables();
  } catch { fail("Connection to the server lost. The comparison may be out of date. Reconnecting…"); }
}

choice("curve-x", (value) => { against = value; redraw(); });
choice("curve-zero", (value) => { fromZero = value === "true"; redraw(); });
onTheme(redraw);
new ResizeObserver(once(() => {
  for (const [name, chart] of Object.entries(charts)) {
    const width = byId(`${name}-chart`).clientWidth;
    if (width !== chart.width) chart.setSize({ width, height: HEIGHT });
  }
})).observe(byId("main"));
setInterval(() => { if (!document.hidden && (data === null || data.curves.some((one) => one.status === "running"))) refresh(); }, PAUSE_MS);
refresh();
