// The curves. A new point changes a chart's data only, so that a reader's pointer keeps its place.
import { byId, choice, element, onEvent, once } from "./dom.js";
import { append, axisNote, isKnown, points, run, specs, stacked, X } from "./curve_data.js";
import { fillGhostTable, ghosts, startGhosts } from "./ghosts.js";
import { colour, onTheme, patternOf } from "./palette.js";
import { setText } from "./renew.js";

const HEIGHT = 170;
const MARK_ROOM = 10; // CSS pixels: closer marks would merge
const NAMES = ["value", "loss", "traffic", "time", "energy"];
const WITH_GHOSTS = ["value", "loss"];
const charts = {};
let against = "round";
let fromZero = false;

// --- scales ---------------------------------------------------------------------------------------------------

// The y axis begins at zero where amounts are compared, and where the reader wants it. A note marks any other axis.
function yRange(name) {
  return (u, low, high) => {
    const spec = specs()[name];
    if (low === null || high === null) return [0, 1];
    const [bottom, top] = uPlot.rangeNum(low, high, 0.1, true);
    const floor = (spec.zero || fromZero) && low >= 0 ? 0 : low >= 0 ? Math.max(0, bottom) : bottom;
    return [floor, spec.most && high <= spec.most ? (fromZero ? spec.most : Math.min(spec.most, top)) : top];
  };
}

// All charts have the same x axis, so that it includes the ghosts also in those that do not show them.
function xRange(u, low, high) {
  if (low === null) return [0, 1];
  const end = Math.max(high, ...ghosts().map((one) => one.points[against].at(-1) ?? 0));
  return against === "round" ? [low, Math.max(end, low + 4)] : [Math.min(low, 0), end || 1];
}

function axis(extra) {
  const grid = { stroke: colour("line"), width: 1 };
  return { stroke: colour("quiet"), font: "12px system-ui, sans-serif", grid, ticks: { show: false }, ...extra };
}

function xAxis() {
  const whole = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];
  const steps = against === "round" ? { incrs: whole, space: (u, number, least, most) => (most < 10000 ? 36 : 60) } : { space: 60 };
  return axis({ ...steps, size: 30, values: (u, ticks, i, space, step) => ticks.map((v) => X[against].tick(v, step)) });
}

// --- one chart ------------------------------------------------------------------------------------------------

// A chart with ghosts has the x values of all runs. Return the point of this run at one of them, -1 after the last one.
function ownIndex(u, index) {
  const x = u.data[0][index];
  const all = points[against];
  if (all[index] === x) return index;
  return x > all.at(-1) ? -1 : all.findLastIndex((one) => one <= x);
}

// The legend shows the values under the pointer, or the latest known ones.
function legendValue(column, show) {
  return (u, v, series, index) => {
    const all = points[column];
    const value = index === null || index === undefined ? all.findLast((one) => one !== null) : all[ownIndex(u, index)];
    return value === null || value === undefined ? "–" : show(value);
  };
}

function ghostValue(show) {
  return (u, v, series, index) => {
    const value = u.data[series].slice(0, (index ?? u.data[series].length) + 1).findLast((one) => one !== null && one !== undefined);
    return value === undefined ? "–" : show(value);
  };
}

function drawSquares(u, series, from, to) {
  const { ctx } = u;
  ctx.save();
  ctx.fillStyle = u.series[series].stroke();
  for (let i = from; i <= to; i++) {
    const value = u.data[series][i];
    if (value !== null && value !== undefined) ctx.fillRect(u.valToPos(u.data[0][i], "x", true) - 4, u.valToPos(value, "y", true) - 4, 8, 8);
  }
  ctx.restore();
}

const hasRoom = (u) => points.round.length * MARK_ROOM <= u.bbox.width / devicePixelRatio;

function series(line, spec) {
  const stroke = colour(line.colour);
  const marks = { size: 6, fill: colour("card"), show: hasRoom };
  if (line.mark === "square") {
    marks.show = (u, at, from, to) => { if (hasRoom(u)) drawSquares(u, at, from, to); return false; };
  }
  if (spec.stack) marks.show = false;
  return { label: line.label, stroke, width: spec.stack ? 1 : 2, dash: line.dash, spanGaps: true, points: marks, value: legendValue(line.column, spec.show) };
}

// Ghosts are thin and have no hue; each has a dash of its own.
function ghostSeries(ghost, spec) {
  return { label: ghost.label, stroke: colour("quiet"), width: 1.2, dash: ghost.dash, spanGaps: true, points: { show: false }, value: ghostValue(spec.show) };
}

const ghostsOf = (name) => (WITH_GHOSTS.includes(name) ? ghosts() : []);

function bands(spec) {
  if (!spec.stack) return {};
  const fill = (line) => (u) => patternOf(line.colour, u.ctx);
  return { bands: spec.lines.slice(1).map((line, i) => ({ series: [i + 2, i + 1], fill: fill(line) })) };
}

// A sample in the legend has the dash of its line.
const markOf = (dash) => (!dash ? "solid" : dash[0] < 4 ? "dotted" : "dashed");

function options(name, spec, width) {
  const lines = [...spec.lines.map((line) => series(line, spec)), ...ghostsOf(name).map((ghost) => ghostSeries(ghost, spec))];
  if (spec.stack) lines[0].fill = (u) => patternOf(spec.lines[0].colour, u.ctx);
  return {
    width,
    height: HEIGHT,
    cursor: { sync: { key: "rounds" }, y: false, dataIdx: (u, at, index) => index },
    legend: { markers: { dash: (u, at) => markOf(u.series[at].dash) } },
    scales: { x: { time: false, range: xRange }, y: { range: yRange(name) } },
    axes: [xAxis(), axis({ size: 62, values: (u, ticks, i, space, step) => ticks.map((v) => spec.tick(v, step)) })],
    series: [{ label: "Round", value: (u, v, ...place) => (against === "round" && v ? String(v) : legendValue("round", String)(u, v, ...place)) }, ...lines],
    hooks: { draw: [() => note(name)] },
    ...bands(spec),
  };
}

function dataOf(name, spec) {
  const columns = spec.lines.map((line) => line.column);
  const own = [points[against], ...(spec.stack ? stacked(columns) : columns.map((column) => points[column]))];
  const behind = ghostsOf(name).map((ghost) => [ghost.points[against], ghost.points[columns[0]]]);
  return behind.length ? uPlot.join([own, ...behind]) : own;
}

function describeGhost(ghost, spec) {
  const all = ghost.points[spec.lines[0].column];
  const last = all.findLastIndex((v) => v !== null);
  return `${ghost.label}: ${last < 0 ? "not measured" : `${spec.show(all[last])} in round ${ghost.points.round[last]}`}`;
}

function describe(name, spec) {
  const texts = spec.lines.map(({ column, label }) => {
    const known = points[column].flatMap((v, i) => (v === null ? [] : [[v, points.round[i]]]));
    if (!known.length) return `${label}: not measured yet`;
    const [value, round] = known[known.length - 1];
    const all = known.map(([v]) => v);
    const low = all.reduce((a, b) => Math.min(a, b));
    const high = all.reduce((a, b) => Math.max(a, b));
    return `${label}: ${spec.show(value)} in round ${round}, between ${spec.show(low)} and ${spec.show(high)}`;
  });
  texts.push(...ghostsOf(name).map((ghost) => describeGhost(ghost, spec)));
  return `${spec.title}. ${texts.join("; ")}. rounds.csv lists the values of all rounds.`;
}

function note(name) {
  setText(byId(`${name}-note`), axisNote(charts[name]?.uplot, specs()[name]));
}

// --- all charts -----------------------------------------------------------------------------------------------

// A chart is built again only if its lines, its x axis, its ghosts or the colours change.
const shapeOf = (name, spec) => [against, run.measure, ...spec.lines.map((line) => line.column), ...ghostsOf(name).map((one) => one.label + one.id)].join();

function draw(name, spec, width) {
  const box = byId(`${name}-chart`);
  const known = spec.lines.filter((line) => isKnown(line.column));
  setText(byId(`${name}-title`), spec.title);
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", describe(name, spec));
  if (!known.length) {
    remove(name);
    box.replaceChildren(element("p", "No measurements yet.", { class: "empty" }));
  } else if (charts[name]?.shape === shapeOf(name, spec)) {
    charts[name].uplot.setData(dataOf(name, spec));
  } else {
    remove(name);
    box.replaceChildren();
    charts[name] = { shape: shapeOf(name, spec), uplot: new uPlot(options(name, spec, width), dataOf(name, spec), box) };
  }
  box.dataset.points = known.length ? points[spec.lines[0].column].filter((v) => v !== null).length : 0;
}

function remove(name) {
  charts[name]?.uplot.destroy();
  delete charts[name];
}

// All widths are read before anything changes: each reading after a change would make the browser lay out the page.
function drawAll() {
  byId("energy-figure").hidden = !isKnown("joules"); // few boards have a meter
  const all = Object.entries(specs()).map(([name, spec]) => [name, spec, byId(`${name}-chart`).clientWidth]);
  for (const one of all) draw(...one);
  fillGhostTable(points);
}

const redraw = once(drawAll);
const isDrawn = () => Object.keys(charts).length > 0;

function rebuild() {
  NAMES.forEach(remove);
  redraw();
}

function followWidth() {
  const observer = new ResizeObserver(once(() => {
    for (const [name, { uplot }] of Object.entries(charts)) {
      const width = byId(`${name}-chart`).clientWidth;
      if (width !== uplot.width) uplot.setSize({ width, height: HEIGHT });
    }
  }));
  for (const name of NAMES) observer.observe(byId(`${name}-chart`));
}

// The page brings the first curves, so that they do not wait for the event stream.
export function startCharts() {
  append(JSON.parse(byId("charts").dataset.curves));
  choice("curve-x", (value) => { against = value; if (isDrawn()) redraw(); });
  choice("curve-zero", (value) => { fromZero = value === "true"; if (isDrawn()) redraw(); });
  drawAll();
  onEvent("curves", (data) => { append(JSON.parse(data)); redraw(); });
  onTheme(rebuild);
  followWidth();
  startGhosts(redraw);
}
