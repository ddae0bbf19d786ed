// Curves of other runs behind those of this run: the best one beside it, and a second one that the reader chooses.
import { byId, element } from "./dom.js";
import { run as own, specs } from "./curve_data.js";
import { renew } from "./renew.js";

const MOST_LISTED = 200;
const NAME_SHOWN = 16;
const RETRY_MS = 2000;
const MOST_TRIES = 60;
const SLOTS = {
  best: { dash: [2, 3], word: "Best" },
  second: { dash: [9, 3, 2, 3], word: "Second" },
};
let runs = [];
const chosen = { best: "", second: "" };
const loaded = new Map(); // id -> its points
let changed = () => {};

// --- what the charts draw -------------------------------------------------------------------------------------

const shorten = (name) => (name.length > NAME_SHOWN ? `${name.slice(0, NAME_SHOWN - 1)}…` : name);

const nameOf = (id) => runs.find((one) => one.id === id)?.label ?? id;

// The ghosts that have come, with the same score as this run.
export function ghosts() {
  return Object.entries(SLOTS).flatMap(([slot, { dash, word }]) => {
    const points = loaded.get(chosen[slot]);
    return points && points.measure === own.measure ? [{ id: chosen[slot], name: nameOf(chosen[slot]), label: `${word}: ${shorten(nameOf(chosen[slot]))}`, dash, points }] : [];
  });
}

// A ghost ends where this run is planned to end, so that a longer run does not squeeze its curves.
function cut(points) {
  const planned = runs.find((one) => one.own)?.planned_rounds;
  if (!planned) return points;
  const end = points.round.findLastIndex((round) => round <= planned) + 1;
  return Object.fromEntries(Object.entries(points).map(([name, all]) => [name, Array.isArray(all) ? all.slice(0, end) : all]));
}

// --- the reader's choice, kept until the tab is closed --------------------------------------------------------

const key = () => `fedquilt.ghosts.${runs.find((one) => one.own)?.id ?? ""}`;

function keep() {
  try { sessionStorage.setItem(key(), JSON.stringify(chosen)); } catch { /* the choice holds until the page is closed */ }
}

function kept() {
  try { return JSON.parse(sessionStorage.getItem(key())) ?? {}; } catch { return {}; }
}

// --- the two lists --------------------------------------------------------------------------------------------

const scored = (one) => (one.best === null ? "no score" : specs().value.show(one.best));
const option = (value, text) => element("option", text, { value });

function describeRun(one) {
  return `${one.label} ${scored(one)}${one.status === "finished" ? "" : `, ${one.status}`}`;
}

function fill(slot, options) {
  const list = byId(`ghost-${slot}`);
  list.replaceChildren(...options);
  list.disabled = options.length < 2;
  list.value = chosen[slot];
  list.addEventListener("change", () => { chosen[slot] = list.value; keep(); load(); });
}

function offer() {
  const others = runs.filter((one) => one.comparable).sort((a, b) => (b.best ?? -Infinity) - (a.best ?? -Infinity));
  const best = others.find((one) => one.best !== null);
  const before = kept();
  chosen.best = best && before.best !== "" ? best.id : "";
  chosen.second = others.some((one) => one !== best && one.id === before.second) ? before.second : "";
  const none = option("", others.length ? "none" : "no comparable run");
  fill("best", best ? [option(best.id, `best of ${others.length}: ${describeRun(best)}`), none] : [none]);
  const listed = others.filter((one) => one !== best).slice(0, MOST_LISTED).map((one) => option(one.id, describeRun(one)));
  fill("second", [option("", "second run: none"), ...listed]);
  load();
}

// --- fetching -------------------------------------------------------------------------------------------------

async function fetchJson(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`status ${response.status}`);
  return response.json();
}

async function loadOne(id) {
  if (!id || loaded.has(id)) return;
  try { loaded.set(id, cut(await fetchJson(`api/v1/runs/${encodeURIComponent(id)}/curves`))); } catch { /* its folder is gone, or the connection is lost */ }
}

async function load() {
  await Promise.all([loadOne(chosen.best), loadOne(chosen.second)]);
  byId("charts").dataset.ghosts = ghosts().map((one) => one.id).join(" ");
  changed();
}

// --- the table ------------------------------------------------------------------------------------------------

const latest = (column) => column.findLast((v) => v !== null) ?? null;
const lowest = (column) => column.reduce((low, v) => (v === null || (low !== null && low <= v) ? low : v), null);
const text = (v, show) => (v === null ? "–" : show(v));

function tableRow(key, name, points) {
  const { value, loss } = specs();
  const highest = points.value.reduce((top, v) => (v === null || (top !== null && top >= v) ? top : v), null);
  const cells = [String(latest(points.round) ?? 0), text(latest(points.value), value.show), text(highest, value.show), text(latest(points.loss), loss.show), text(lowest(points.loss), loss.show)];
  const row = element("tr", "", { "data-key": key });
  row.append(element("th", name, { scope: "row" }), ...cells.map((cell) => element("td", cell, { class: "n" })));
  return row;
}

export function fillGhostTable(points) {
  if (!byId("ghost-details")?.open) return;
  renew(byId("ghost-rows"), [tableRow("this run", "this run", points), ...ghosts().map((one) => tableRow(one.id, one.name, one.points))]);
}

// --- start ----------------------------------------------------------------------------------------------------

// A page that opens before its run has begun asks again: until then nobody knows what the run can be compared with.
async function start(tries = 0) {
  try { runs = await fetchJson("api/v1/runs"); } catch { /* their folder cannot be read, or is not there yet */ }
  if (tries < MOST_TRIES && !runs.some((one) => one.own && one.dataset)) setTimeout(() => start(tries + 1), RETRY_MS);
  else offer();
}

// The list is fetched after the curves of this run have been painted, because it may be long.
export function startGhosts(redraw) {
  if (!byId("ghost-best")) return; // a page without a run folder
  changed = redraw;
  byId("ghost-details").addEventListener("toggle", redraw);
  requestAnimationFrame(() => setTimeout(() => start()));
}
