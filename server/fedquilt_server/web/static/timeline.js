// The timeline: a row for each board, and bars for what it did in the latest exchanges. Only the visible part is drawn.
import { now } from "./clock.js";
import { byId, choice, element, hideTip, onEvent, once, showTip } from "./dom.js";
import { SPANS, append, isEmpty, lanes, latestReplies, list } from "./timeline_data.js";
import { colour, onTheme, patternOf, prepareCanvas } from "./palette.js";
import { renew, setText } from "./renew.js";
import { duration } from "./units.js";

const AXIS = 20;
const MOST_HEIGHT = 250;
const ZOOMS = [1, 2, 3, 5, 8, 13, 21, 40];
let zoom = 2; // so many exchanges fill the width
let order = "slow";
let isLoaded = false; // until the first event, the server's words and heights stay
let drawn = null; // what the canvas shows: for the tips
let follows = true; // the right end stays in view until the reader scrolls back

const gutter = () => (byId("timeline").clientWidth < 480 ? 84 : 128);
// Few lanes are high, many are low, and the box scrolls.
let roomy = 0;
const laneHeight = (row) => Math.max(5, roomy, 16 / row.clients.length);
const rowHeight = (row) => Math.max(19, laneHeight(row) * row.clients.length + 4);

// --- geometry -------------------------------------------------------------------------------------------------

function measure() {
  const all = list();
  const begin = all[0].opened;
  const last = all[all.length - 1];
  const end = Math.max(last.closed ?? now(), begin + 0.001);
  const width = byId("timeline").clientWidth - gutter();
  const first = all[Math.max(0, all.length - ZOOMS[zoom])];
  const scale = width / Math.max(0.001, end - first.opened);
  return { begin, end, scale, width, total: Math.ceil(gutter() + (end - begin) * scale) };
}

function resize(geometry, rows) {
  const box = byId("timeline");
  const size = byId("timeline-size");
  const height = AXIS + rows.reduce((sum, row) => sum + rowHeight(row), 0);
  size.style.width = `${Math.max(box.clientWidth, geometry.total)}px`;
  size.style.height = `${height}px`;
  box.style.height = `${Math.min(MOST_HEIGHT, height) + (geometry.total > box.clientWidth ? 14 : 2)}px`;
  if (follows) box.scrollLeft = box.scrollWidth;
}

// --- drawing --------------------------------------------------------------------------------------------------

function draw() {
  if (!isLoaded) return;
  const box = byId("timeline");
  const empty = isEmpty();
  for (const id of ["timeline", "timeline-legend"]) byId(id).hidden = empty;
  byId("timeline-empty").hidden = !empty;
  if (empty) { byId("timeline-text").textContent = ""; return; }
  const rows = lanes(order);
  roomy = Math.min(16, 240 / rows.reduce((sum, row) => sum + row.clients.length, 0));
  const geometry = measure();
  resize(geometry, rows);
  const pen = prepareCanvas(byId("timeline-canvas"), box.clientWidth, box.clientHeight);
  const fills = Object.fromEntries(Object.entries(SPANS).map(([name, span]) => [name, patternOf(span.colour, pen)]));
  drawn = { ...geometry, rows: [], x: (at) => gutter() + (at - geometry.begin) * geometry.scale - box.scrollLeft };
  drawRows(pen, rows, fills, box);
  drawAxis(pen, box);
  describe(rows);
}

function drawRows(pen, rows, fills, box) {
  let y = AXIS - box.scrollTop;
  for (const row of rows) {
    const height = rowHeight(row);
    if (y + height > 0 && y < box.clientHeight) {
      drawRow(pen, row, y, height, fills, box);
      drawn.rows.push({ row, top: y, bottom: y + height });
    }
    y += height;
  }
}

function drawRow(pen, row, y, height, fills, box) {
  pen.fillStyle = colour("line");
  pen.fillRect(0, y + height - 0.5, box.clientWidth, 0.5);
  const lane = laneHeight(row);
  for (const bar of row.bars) {
    const top = y + 2 + row.clients.indexOf(bar.client) * lane;
    for (const [name, from, to] of bar.spans) drawSpan(pen, name, drawn.x(bar.exchange.opened + from), drawn.x(bar.exchange.opened + to), top, lane - 1, fills);
  }
  drawLabel(pen, row.agent, y, height);
}

function drawSpan(pen, name, from, to, top, height, fills) {
  if (to < gutter() || from > drawn.width + gutter()) return;
  const left = Math.max(from, gutter());
  const width = Math.max(1, to - left - 0.5);
  pen.fillStyle = fills[name];
  pen.fillRect(left, top, width, height);
  if (name !== "training") {
    pen.strokeStyle = colour(SPANS[name].colour);
    pen.setLineDash(name === "awaited" ? [3, 3] : []);
    pen.lineWidth = 0.8;
    if (width > 2) pen.strokeRect(left + 0.4, top + 0.4, width - 0.8, height - 0.8);
    pen.setLineDash([]);
  }
}

function drawLabel(pen, agent, y, height) {
  pen.fillStyle = colour("card");
  pen.fillRect(0, y, gutter(), height - 0.5);
  pen.fillStyle = colour("text");
  pen.fillText(shorten(pen, agent, gutter() - 10), 0, y + height / 2);
}

// The number at the end of a name tells it from the others, so a name that does not fit loses its middle.
function shorten(pen, text, width) {
  if (text.length <= 60 && pen.measureText(text).width <= width) return text;
  const tail = text.slice(-6);
  let stem = text.slice(0, Math.min(60, text.length - 6));
  while (stem.length > 0 && pen.measureText(`${stem}…${tail}`).width > width) stem = stem.slice(0, -1);
  return `${stem}…${tail}`;
}

function drawAxis(pen, box) {
  pen.fillStyle = colour("card");
  pen.fillRect(0, 0, box.clientWidth, AXIS - 1);
  const left = gutter() - 1; // the first round begins at the gutter, but for rounding
  let free = left;
  for (const one of list()) {
    const x = drawn.x(one.opened);
    if (x < left || x > box.clientWidth) continue;
    pen.fillStyle = colour("quiet");
    pen.fillRect(x, AXIS - 5, 1, box.clientHeight);
    const text = `round ${one.round}${one.exchange ? `, exchange ${one.exchange + 1}` : ""}`;
    if (x < free) continue;
    pen.fillText(text, x + 4, AXIS / 2 - 1);
    free = x + pen.measureText(text).width + 14;
  }
}

// --- words ----------------------------------------------------------------------------------------------------

function describe(rows) {
  const all = list();
  const slowest = [...rows].sort((a, b) => b.slowness - a.slowness)[0];
  const lost = rows.filter((row) => row.bars.some((bar) => bar.spans.some(([name]) => name === "lost"))).length;
  const span = `Rounds ${all[0].round} to ${all[all.length - 1].round}, ${rows.length} board${rows.length === 1 ? "" : "s"}`;
  const words = `${span}. Slowest: ${slowest.agent}.${lost ? ` ${lost} board${lost === 1 ? "" : "s"} with replies that do not count.` : ""}`;
  setText(byId("timeline-text"), words);
}

const fillTable = once(() => {
  if (!byId("timeline-details").open) return;
  renew(byId("timeline-rows"), latestReplies().slice(0, 200).map((reply) => {
    const row = element("tr", "", { "data-key": `${reply.agent} ${reply.client}` });
    row.append(element("th", reply.agent, { scope: "row" }), element("td", String(reply.client), { class: "n" }));
    for (const name of ["receive", "train", "send", "wait"]) row.append(element("td", duration(reply[name]), { class: "n" }));
    row.append(element("td", reply.outcome));
    return row;
  }));
});

function tip(event) {
  const box = byId("timeline").getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  const hit = drawn?.rows.find(({ top, bottom }) => y >= top && y < bottom && y > AXIS);
  if (!hit) { hideTip(); return; }
  const lane = Math.min(hit.row.clients.length - 1, Math.floor((y - hit.top - 2) / laneHeight(hit.row)));
  const at = drawn.begin + (x + byId("timeline").scrollLeft - gutter()) / drawn.scale;
  const bar = hit.row.bars.find((one) => one.client === hit.row.clients[Math.max(0, lane)] && at >= one.exchange.opened && at <= (one.exchange.closed ?? now()));
  if (!bar || x < gutter()) { showTip(event, [hit.row.agent, `clients ${hit.row.clients.join(", ")}`.slice(0, 120)]); return; }
  const spans = bar.spans.map(([name, from, to]) => `${SPANS[name].label}: ${duration(to - from)}`);
  showTip(event, [`${hit.row.agent}, client ${bar.client}, round ${bar.exchange.round}: ${bar.outcome}`, ...spans]);
}

// --- start ----------------------------------------------------------------------------------------------------

function showLegend() {
  byId("timeline-legend").replaceChildren(...Object.values(SPANS).map((span) => {
    const item = element("li");
    const sample = element("canvas", "", { "aria-hidden": "true" });
    const pen = prepareCanvas(sample, 22, 11);
    pen.fillStyle = patternOf(span.colour, pen);
    pen.fillRect(0, 0, 22, 11);
    item.append(sample, element("span", span.label));
    return item;
  }));
}

const redraw = once(draw);

function zoomBy(step) {
  zoom = Math.max(0, Math.min(ZOOMS.length - 1, zoom + step));
  follows = true;
  redraw();
}

export function startTimeline() {
  const box = byId("timeline");
  onEvent("timeline", (data) => { isLoaded = true; append(JSON.parse(data)); redraw(); fillTable(); });
  choice("timeline-order", (value) => { order = value; redraw(); });
  byId("timeline-in").addEventListener("click", () => zoomBy(-1));
  byId("timeline-out").addEventListener("click", () => zoomBy(1));
  byId("timeline-details").addEventListener("toggle", fillTable);
  box.addEventListener("scroll", () => { follows = box.scrollLeft + box.clientWidth >= box.scrollWidth - 24; redraw(); });
  box.addEventListener("pointermove", tip);
  box.addEventListener("pointerleave", hideTip);
  new ResizeObserver(redraw).observe(byId("timeline-title").closest(".card"));
  onTheme(() => { showLegend(); redraw(); });
  showLegend();
  setInterval(() => { if (!isEmpty() && list().at(-1).closed === null) redraw(); }, 1000);
}
