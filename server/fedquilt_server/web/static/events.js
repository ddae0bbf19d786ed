// The list of events: new ones on top, filtered by level and text.
import { tick } from "./clock.js";
import { byId, choice, onEvent, parse } from "./dom.js";

const LEVELS = ["info", "warning", "error"];
let level = "info";
let words = "";

function isShown(item) {
  const loud = LEVELS.indexOf(item.dataset.level) >= LEVELS.indexOf(level);
  return loud && item.textContent.toLowerCase().includes(words);
}

function filter() {
  for (const item of byId("events").children) item.hidden = !isShown(item);
}

function add(html, fresh) {
  const list = byId("events");
  const items = parse(html);
  tick(items);
  if (fresh) list.replaceChildren(items);
  else list.prepend(items);
  while (list.children.length > Number(list.dataset.most)) list.lastElementChild.remove();
  filter();
}

// The events of one board, for its drawer.
export function eventsOf(agent) {
  return [...byId("events").children].filter((item) => item.dataset.board === agent);
}

export function startEvents() {
  onEvent("event-list", (html) => add(html, true));
  onEvent("event-rows", (html) => add(html, false));
  choice("event-level", (value) => { level = value; filter(); });
  byId("event-filter").addEventListener("input", (event) => { words = event.target.value.trim().toLowerCase(); filter(); });
}
