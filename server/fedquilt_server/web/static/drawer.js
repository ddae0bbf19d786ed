// A dialog with everything about one board: state, values, curves, latest replies and events.
import { rowOf, cell } from "./boards.js";
import { MEASURES, historyOf, watchHistories } from "./board_history.js";
import { moment, timeOfDay } from "./clock.js";
import { byId, element, onEvent, once } from "./dom.js";
import { eventsOf } from "./events.js";
import { colour, onTheme } from "./palette.js";
import { renew, setText } from "./renew.js";
import { repliesOf } from "./timeline_data.js";
import { duration, percent } from "./units.js";

const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400]; // between two times
const charts = new Map();
let shown = null;
let opener = null;

const FACTS = { placement: "Place", clients: "Clients", cores: "Cores", workers: "Workers", memory: "Memory", memory_own: "Agent's memory", temperature: "Temperature", power: "Power", energy: "Energy", load: "Load", training: "Training", accepted: "Replies", late: "Late", rejected: "Rejected", restarts: "Restarts", seen: "Last seen" };

function showFacts(row) {
  const reason = cell(row, "reason").textContent;
  byId("drawer-state").dataset.health = row.dataset.health;
  const since = Number(row.dataset.since);
  const begun = since > 0 && since < 1e11 ? ` since ${moment(since)}` : "";
  setText(byId("drawer-state"), `${row.dataset.health}${begun}${reason ? `: ${reason}` : ""} (${cell(row, "kind").textContent})`);
  renew(byId("drawer-facts"), Object.entries(FACTS).flatMap(([name, label]) => {
    const text = cell(row, name)?.textContent;
    if (!text) return [];
    const item = element("div", "", { "data-key": name });
    item.append(element("dt", label), element("dd", text));
    return [item];
  }));
}

// --- curves ---------------------------------------------------------------------------------------------------

function options(name, spec, width) {
  const quiet = { stroke: colour("quiet"), font: "11px system-ui, sans-serif", grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
  return {
    width,
    height: 100,
    title: "",
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: true }, y: { range: (u, low, high) => (spec.unit === "%" ? [0, 100] : uPlot.rangeNum(low ?? 0, high ?? 1, 0.2, true)) } },
    axes: [{ ...quiet, size: 24, space: 70, incrs: SECONDS, values: (u, ticks) => ticks.map(timeOfDay) }, { ...quiet, size: 46, values: (u, ticks) => ticks.map((v) => `${v} ${spec.unit}`) }],
    series: [{}, { stroke: colour("accuracy"), width: 1.5, points: { show: false }, spanGaps: false }],
  };
}

const withUnit = (v, unit) => (unit === "%" ? percent(v / 100, 0) : `${v.toFixed(0)} ${unit}`);

function drawCurves() {
  const history = historyOf(shown);
  if (!history) return;
  for (const [name, spec] of Object.entries(MEASURES)) {
    const figure = figureOf(name, spec);
    const known = history[name].filter((v) => v !== null);
    figure.hidden = known.length < 2;
    if (figure.hidden) continue;
    const text = `${spec.label}, between ${withUnit(Math.min(...known), spec.unit)} and ${withUnit(Math.max(...known), spec.unit)}`;
    figure.querySelector("[role=img]").setAttribute("aria-label", text);
    const data = [history.at, history[name]];
    if (charts.has(name)) charts.get(name).setData(data);
    else charts.set(name, new uPlot(options(name, spec, figure.clientWidth), data, figure.querySelector("[role=img]")));
  }
}

function figureOf(name, spec) {
  let figure = byId(`drawer-${name}`);
  if (!figure) {
    figure = element("figure", "", { id: `drawer-${name}` });
    figure.append(element("figcaption", spec.label), element("div", "", { role: "img" }));
    byId("drawer-charts").append(figure);
  }
  return figure;
}

function clearCurves() {
  for (const chart of charts.values()) chart.destroy();
  charts.clear();
  byId("drawer-charts").replaceChildren();
}

// --- replies and events ---------------------------------------------------------------------------------------

function replyRow(reply) {
  const row = element("tr", "", { "data-key": `${reply.round} ${reply.exchange} ${reply.client} ${reply.outcome}` });
  row.append(element("th", String(reply.round), { scope: "row", class: "n" }));
  row.append(element("td", String(reply.exchange + 1), { class: "n" }));
  row.append(element("td", String(reply.client), { class: "n" }));
  for (const name of ["receive", "train", "send", "wait"]) row.append(element("td", duration(reply[name]), { class: "n" }));
  row.append(element("td", reply.outcome));
  return row;
}

function showReplies() {
  renew(byId("drawer-replies"), repliesOf(shown).slice(0, 20).map(replyRow));
}

function showEvents() {
  const items = eventsOf(shown).map((item) => {
    const copy = item.cloneNode(true);
    copy.hidden = false;
    // A new event does not push its text into an older one. The shown time changes when the page knows the clock better.
    copy.dataset.key = item.querySelector("[data-at]").dataset.at + item.lastElementChild.textContent;
    return copy;
  });
  renew(byId("drawer-events"), items.length ? items : [element("li", "No events of this board.", { class: "quiet" })]);
}

// --- open, follow, close --------------------------------------------------------------------------------------

// Before the next paint, and so after each list has taken its event.
const whileOpen = (show) => once(() => { if (shown !== null) show(); });

const refresh = whileOpen(() => {
  const row = rowOf(shown);
  if (!row) return;
  showFacts(row);
  drawCurves();
});

function open(row) {
  shown = row.dataset.agent;
  opener = shown;
  byId("drawer-title").textContent = shown;
  showReplies();
  showEvents();
  showFacts(row);
  byId("drawer").showModal();
  byId("drawer").scrollTop = 0;
  drawCurves();
}

// The row may have been replaced while the dialog was open.
function closed() {
  shown = null;
  clearCurves();
  rowOf(opener)?.querySelector(".open").focus();
}

export function startDrawer() {
  const drawer = byId("drawer");
  byId("boards").addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-agent]");
    const inGrid = byId("boards-card").dataset.view === "grid";
    if (row && (inGrid || event.target.closest(".open"))) open(row);
  });
  byId("drawer-close").addEventListener("click", () => drawer.close());
  drawer.addEventListener("click", (event) => { if (event.target === drawer) drawer.close(); });
  drawer.addEventListener("close", closed);
  watchHistories((agent) => { if (agent === shown) refresh(); });
  onEvent("timeline", whileOpen(showReplies));
  onEvent("event-rows", whileOpen(showEvents));
  onTheme(() => { clearCurves(); refresh(); });
}
