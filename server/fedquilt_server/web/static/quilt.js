// The quilt: how often each channel of each layer was trained, and which share of each layer each board trains.
import { byId, choice, element, hideTip, natural, onEvent, once, showTip } from "./dom.js";
import { colour, onTheme, prepareCanvas } from "./palette.js";
import { renew, setText } from "./renew.js";
import { percent } from "./units.js";

const ROW = 18;
const HEAD = 2;
const CHANNELS = 128;
const PAUSE_MS = 2000;
let coverage = null;
let view = "channels";
let shown = null; // geometry of what is drawn: for the tips

const gutter = () => (byId("quilt").clientWidth < 480 ? 84 : 128);
const boardsOf = () => [...new Set(coverage.layers.flatMap((layer) => Object.keys(layer.boards)))].sort(natural);

// --- drawing --------------------------------------------------------------------------------------------------

// Lightness alone carries the amount, so that the quilt reads without hue. Nothing trained is a hatched cell.
function paint(pen, share, x, y, width, height) {
  if (share > 0) {
    pen.globalAlpha = 0.15 + 0.85 * Math.min(1, share);
    pen.fillStyle = colour("quilt");
    pen.fillRect(x, y, width, height);
    pen.globalAlpha = 1;
  } else {
    pen.fillStyle = colour("track");
    pen.fillRect(x, y, width, height);
    pen.fillStyle = colour("quiet");
    pen.fillRect(x, y + height / 2, width, 0.7);
  }
}

function drawChannels(pen, width) {
  const top = Math.max(1, ...coverage.layers.flatMap((layer) => layer.counts));
  const last = Math.max(1, ...coverage.layers.flatMap((layer) => layer.latest));
  return coverage.layers.map((layer, i) => {
    const y = HEAD + i * ROW;
    const step = width / Math.max(1, layer.counts.length);
    layer.counts.forEach((count, j) => {
      paint(pen, count / top, gutter() + j * step, y, Math.max(0.5, step - (step > 4 ? 0.5 : 0)), ROW - 7);
      if (layer.latest[j] > 0) {
        pen.fillStyle = colour("latest");
        pen.globalAlpha = 0.2 + 0.8 * layer.latest[j] / last;
        pen.fillRect(gutter() + j * step, y + ROW - 6, Math.max(0.5, step), 4);
        pen.globalAlpha = 1;
      }
    });
    return { layer, y, step };
  });
}

function drawBoards(pen, width) {
  const boards = boardsOf();
  const step = width / Math.max(1, boards.length);
  return coverage.layers.map((layer, i) => {
    const y = HEAD + i * ROW;
    boards.forEach((agent, j) => paint(pen, layer.boards[agent] ?? 0, gutter() + j * step, y, Math.max(0.5, step - (step > 4 ? 1 : 0)), ROW - 2));
    return { layer, y, step };
  });
}

function drawNames(pen) {
  pen.fillStyle = colour("text");
  coverage.layers.forEach((layer, i) => pen.fillText(shorten(pen, layer.name), 0, HEAD + i * ROW + ROW / 2 - 1));
}

// The end of a layer's name says more than its beginning.
function shorten(pen, text) {
  let cut = text.slice(-60);
  while (cut.length > 1 && pen.measureText(cut).width > gutter() - 8) cut = `…${cut.slice(2)}`;
  return cut;
}

function draw() {
  if (coverage === null) return; // until it has come, the server's words stay
  const known = coverage.layers.length > 0;
  for (const id of ["quilt", "quilt-controls", "quilt-details"]) byId(id).hidden = !known;
  byId("quilt-empty").hidden = known;
  byId("split").classList.toggle("one-sided", !known);
  if (!known) return;
  const box = byId("quilt");
  const pen = prepareCanvas(byId("quilt-canvas"), box.clientWidth, HEAD + coverage.layers.length * ROW + 2);
  const width = box.clientWidth - gutter() - 2;
  shown = (view === "channels" ? drawChannels : drawBoards)(pen, width);
  drawNames(pen);
  describe();
}

// --- words ----------------------------------------------------------------------------------------------------

const countText = (v) => (v === null ? "–" : String(v));
const shareText = (v) => (v === null ? "–" : percent(v, 0));

function describe() {
  const whole = coverage.layers.every((layer) => Object.values(layer.boards).every((part) => part >= 1));
  const key = view === "channels"
    ? "Darker: trained by more replies. The mark below: the last round."
    : "Darker: the board trains a larger share of the layer.";
  setText(byId("quilt-text"), `${coverage.rounds} rounds. ${whole ? "Every client trains the whole model." : leastCovered()} ${key}`);
  fillTable();
}

function leastCovered() {
  const least = coverage.layers.reduce((a, b) => ((b.trained ?? 0) < (a.trained ?? 0) ? b : a));
  const part = least.trained ?? 0;
  return part < 1 ? `Least covered layer: ${least.name}, ${percent(part, 0)} of its channels.` : "All channels were trained.";
}

function fillTable() {
  if (!byId("quilt-details").open) return;
  renew(byId("quilt-rows"), coverage.layers.map((layer) => {
    const row = element("tr");
    const parts = Object.values(layer.boards);
    row.append(element("th", layer.name, { scope: "row" }));
    const mean = parts.length ? parts.reduce((a, b) => a + b, 0) / parts.length : null;
    const texts = [countText(layer.channels), shareText(layer.trained), countText(layer.least), countText(layer.most), shareText(layer.trained_latest), shareText(mean)];
    for (const text of texts) row.append(element("td", text, { class: "n" }));
    return row;
  }));
}

// The channels of which a cell shows the mean.
function channelText({ channels, counts }, index) {
  const [first, last] = [index, index + 1].map((cell) => Math.floor(channels * cell / counts.length));
  return `${last - first > 1 ? `channels ${first + 1}–${last}` : `channel ${last}`} of ${channels}`;
}

function tip(event) {
  const box = byId("quilt").getBoundingClientRect();
  const [x, y] = [event.clientX - box.left - gutter(), event.clientY - box.top + byId("quilt").scrollTop];
  const row = shown?.find((one) => y >= one.y && y < one.y + ROW);
  if (!row) { hideTip(); return; }
  const index = Math.floor(x / row.step);
  if (view === "channels") {
    const count = row.layer.counts[index];
    if (count === undefined) { showTip(event, [row.layer.name]); return; }
    showTip(event, [row.layer.name, `${channelText(row.layer, index)}: trained by ${count} replies, ${row.layer.latest[index]} in the last round`]);
  } else {
    const agent = boardsOf()[index];
    showTip(event, agent === undefined ? [row.layer.name] : [row.layer.name, `${agent}: ${percent(row.layer.boards[agent] ?? 0, 0)} of the layer`]);
  }
}

// --- fetching: the coverage is big, so the stream only says that there is a newer one -------------------------

let wanted = false;
let visible = false;
let timer = null;

async function fetchCoverage() {
  timer = null;
  if (!wanted || !visible) return;
  wanted = false;
  try {
    const response = await fetch(`api/v1/coverage?channels=${CHANNELS}`);
    if (response.ok) coverage = (await response.json()) ?? { layers: [], rounds: 0 };
    redraw();
  } catch { wanted = true; /* the connection is lost; the stream asks again when it is back */ }
}

function ask() {
  timer ??= setTimeout(fetchCoverage, coverage === null ? 0 : PAUSE_MS);
}

const redraw = once(draw);

export function startQuilt() {
  onEvent("quilt", () => { wanted = true; ask(); });
  choice("quilt-view", (value) => { view = value; redraw(); });
  byId("quilt-details").addEventListener("toggle", () => { if (coverage) fillTable(); });
  const box = byId("quilt");
  box.addEventListener("pointermove", tip);
  box.addEventListener("pointerleave", hideTip);
  new IntersectionObserver(([entry]) => { visible = entry.isIntersecting; if (visible && wanted) ask(); }).observe(byId("quilt-card"));
  new ResizeObserver(redraw).observe(byId("quilt-card"));
  onTheme(redraw);
  wanted = true;
  ask();
}
