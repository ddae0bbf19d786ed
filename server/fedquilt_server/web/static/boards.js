// The list of boards, as a grid or a table. The server sends rows of new boards, and the changed cells of the others.
import { tick } from "./clock.js";
import { byId, choice, element, natural, onEvent, once, parse, recall, remember } from "./dom.js";
import { record } from "./board_history.js";
import { renewNode, setText } from "./renew.js";

const NUMERIC = ["rank", "seen", "memory_share", "progress"];
const DOWNWARDS = ["seen", "progress", "memory_share", "memory_own", "temperature", "power", "energy", "load", "accepted", "late", "rejected", "restarts"];
const sorting = { key: "rank", down: false };
let words = "";
let grouped = false;
let pointed = false; // rows do not change places below the pointer, nor while the keyboard moves between them

const rows = () => [...byId("boards").rows].filter((row) => row.dataset.agent !== undefined);
export const rowOf = (agent) => rows().find((row) => row.dataset.agent === agent);
const rowsByAgent = () => new Map(rows().map((row) => [row.dataset.agent, row]));
export const cell = (row, name) => row.querySelector(`[data-cell="${name}"]`);

// --- cells ----------------------------------------------------------------------------------------------------

const setters = {
  rank: (row, value) => { row.dataset.rank = value; },
  since: (row, value) => { row.dataset.since = value; },
  seen: (row, value) => { cell(row, "seen").dataset.ago = value; },
  memory_share: (row, value) => setBar(cell(row, "memory_share"), value),
  progress: (row, value) => setBar(cell(row, "progress"), value),
  temperature: (row, value) => { cell(row, "temperature").toggleAttribute("data-unknown", value === "–"); setCell(row, "temperature", value); },
  health: (row, value) => { row.dataset.health = value; setCell(row, "health", value); },
};

function setBar(bar, value) {
  bar.hidden = value < 0;
  bar.value = Math.max(0, value);
}

function setCell(row, name, value) {
  const node = cell(row, name);
  if (node) setText(node, value);
}

function update(row, cells) {
  for (const [name, value] of Object.entries(cells)) {
    (setters[name] ?? ((one, text) => setCell(one, name, text)))(row, value);
  }
}

// --- order, filter and groups ---------------------------------------------------------------------------------

export const numberOf = (text) => {
  const found = /-?\d+(\.\d+)?/.exec(text ?? "");
  return found ? Number(found[0]) : -1;
};

const UNITS = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, J: 1, kJ: 1e3, MJ: 1e6, GJ: 1e9 };

function scaledNumber(text) {
  return numberOf(text) * (UNITS[/[A-Za-z]+$/.exec(text.trim())?.[0]] ?? 1);
}

function sortValue(row, key) {
  if (key === "rank") return Number(row.dataset.rank);
  if (key === "seen") return Number(cell(row, "seen").dataset.ago);
  if (NUMERIC.includes(key)) return cell(row, key).hidden ? -1 : cell(row, key).value;
  return scaledNumber(cell(row, key).textContent);
}

function compare(a, b) {
  const names = natural(a.dataset.agent, b.dataset.agent);
  if (sorting.key === "agent" || sorting.key === "clients") return sorting.down ? -names : names;
  const difference = sortValue(a, sorting.key) - sortValue(b, sorting.key);
  return (sorting.down ? -difference : difference) || names;
}

const kindOf = (row) => cell(row, "kind").textContent;
const isShown = (row) => row.textContent.toLowerCase().includes(words);

function groupRow(kind, members) {
  const row = element("tr", "", { class: "group", role: "row" });
  row.append(element("th", `${kind} (${members})`, { role: "rowheader", scope: "rowgroup", colspan: "15" }));
  return row;
}

function inOrder(all) {
  all.sort(compare);
  if (!grouped) return all;
  const kinds = [...new Set(all.map(kindOf))].sort(natural);
  return kinds.flatMap((kind) => {
    const members = all.filter((row) => kindOf(row) === kind);
    return members.some(isShown) ? [groupRow(kind, members.length), ...members] : members;
  });
}

// Move only rows that are out of place: a row that holds the focus or the selection stays where it can.
function arrange() {
  const body = byId("boards");
  const focused = body.contains(document.activeElement) ? document.activeElement : null;
  body.querySelectorAll(".group").forEach((row) => row.remove());
  let place = body.firstElementChild;
  for (const row of inOrder(rows())) {
    if (row === place) place = place.nextElementSibling;
    else body.insertBefore(row, place);
  }
  focused?.focus({ preventScroll: true });
}

function filter() {
  const all = rows();
  for (const row of all) row.hidden = !isShown(row);
  const shown = all.filter((row) => !row.hidden).length;
  const text = words ? `${shown} of ${all.length} boards` : "";
  setText(byId("board-count"), text);
}

// A click focuses a board, too, and that must not hold the list still: only a focus that shows does.
const isFocused = () => byId("boards").querySelector(":focus-visible") !== null;

const refresh = once(() => {
  if (!pointed && !isFocused()) arrange();
  filter();
  byId("boards-card").dataset.count = rows().length > 12 ? "many" : "few";
});

// --- the server's events --------------------------------------------------------------------------------------

function addRows(html, fresh) {
  const added = parse(html);
  tick(added);
  const known = rowsByAgent();
  for (const row of added.querySelectorAll("tr")) {
    const { agent } = row.dataset;
    if (known.has(agent)) renewNode(known.get(agent), row);
    else byId("boards").append(row);
    record(known.get(agent) ?? row);
    known.delete(agent);
  }
  if (fresh) known.forEach((row) => row.remove());
  refresh();
}

function changeCells(data) {
  const known = rowsByAgent();
  for (const [agent, cells] of Object.entries(JSON.parse(data))) {
    const row = known.get(agent);
    if (!row) continue;
    if (cells === null) { row.remove(); continue; }
    update(row, cells);
    record(row);
  }
  tick(byId("boards"));
  refresh();
}

// --- controls -------------------------------------------------------------------------------------------------

function showSorting() {
  for (const head of document.querySelectorAll(".boards thead [data-sort]")) {
    const active = head.dataset.sort === sorting.key;
    if (active) head.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
}

function sortBy(key, down = DOWNWARDS.includes(key)) {
  Object.assign(sorting, { key, down });
  const select = byId("board-sort");
  if ([...select.options].some((option) => option.value === key)) select.value = key;
  showSorting();
  arrange();
}

function addSortButtons() {
  for (const head of document.querySelectorAll(".boards thead [data-sort]")) {
    const button = element("button", head.textContent, { type: "button", class: "sort" });
    button.addEventListener("click", () => sortBy(head.dataset.sort, sorting.key === head.dataset.sort ? !sorting.down : undefined));
    head.replaceChildren(button);
  }
}

function setView(view) {
  byId("boards-card").dataset.view = view;
  for (const button of document.querySelectorAll("button[data-view]")) {
    button.setAttribute("aria-pressed", String(button.dataset.view === view));
  }
}

function startView() {
  setView(recall("boards-view", innerWidth < 760 ? "grid" : byId("boards-card").dataset.view));
  for (const button of document.querySelectorAll("button[data-view]")) {
    button.addEventListener("click", () => { remember("boards-view", button.dataset.view); setView(button.dataset.view); });
  }
}

export function startBoards() {
  onEvent("board-list", (html) => addRows(html, true));
  onEvent("board-rows", (html) => addRows(html, false));
  onEvent("boards", changeCells);
  addSortButtons();
  startView();
  choice("board-sort", (key) => sortBy(key));
  choice("board-group", (value) => { grouped = value === "true"; refresh(); });
  byId("board-filter").addEventListener("input", (event) => { words = event.target.value.trim().toLowerCase(); refresh(); });
  const body = byId("boards");
  body.addEventListener("pointerenter", () => { pointed = true; });
  body.addEventListener("pointerleave", () => { pointed = false; refresh(); });
  body.addEventListener("focusout", refresh);
  rows().forEach(record);
  refresh();
}
