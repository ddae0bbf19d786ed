// The list of runs: it stays up to date, filters while one types, and keeps what is chosen for a comparison.
import { byId } from "./dom.js";

const PAUSE_MS = 3000;
const TYPING_MS = 250;
const PARTS = ["counts", "matching", "nothing", "pages"];
const CHOSEN = "fedquilt.chosen";
const most = Number(byId("compare").dataset.most);

// --- what is chosen ---------------------------------------------------------------------------------------------

function recall() {
  try { return JSON.parse(sessionStorage.getItem(CHOSEN)) ?? []; } catch { return []; }
}

const chosen = new Set(recall());

function showChoice() {
  for (const box of document.querySelectorAll("#rows input")) box.checked = chosen.has(box.value);
  const hidden = [...chosen].filter((id) => !byId("rows").querySelector(`[value="${CSS.escape(id)}"]`));
  byId("hidden-choice").replaceChildren(...hidden.map((id) => Object.assign(document.createElement("input"), { type: "hidden", name: "run", value: id })));
  const ready = chosen.size >= 2 && chosen.size <= most;
  byId("compare").disabled = !ready;
  byId("compare").textContent = chosen.size ? `Compare ${chosen.size}` : "Compare";
  byId("clear").hidden = !chosen.size;
}

function choose(event) {
  const box = event.target;
  if (box.name !== "run") return;
  if (box.checked) chosen.add(box.value); else chosen.delete(box.value);
  keepChoice();
}

function keepChoice() {
  try { sessionStorage.setItem(CHOSEN, JSON.stringify([...chosen])); } catch { /* the choice holds until the page is left */ }
  showChoice();
}

// --- staying up to date -----------------------------------------------------------------------------------------

function momentOf(date) {
  const year = date.getFullYear() === new Date().getFullYear() ? {} : { year: "numeric" };
  return date.toLocaleString([], { month: "short", day: "numeric", ...year, hour: "2-digit", minute: "2-digit", hour12: false });
}

// The server writes UTC; readers see their own time.
function localise(root) {
  for (const cell of root.querySelectorAll("[data-moment]")) {
    const at = Number(cell.dataset.moment);
    if (at && at < 1e11) cell.textContent = momentOf(new Date(at * 1000));
  }
}

// Only rows that changed are replaced, so that hover and focus survive.
function showRows(fresh) {
  const known = new Map([...byId("rows").children].map((row) => [row.dataset.id, row]));
  const rows = [...fresh.children].map((row) => (known.get(row.dataset.id)?.isEqualNode(row) ? known.get(row.dataset.id) : row));
  if (rows.length === known.size && rows.every((row, i) => byId("rows").children[i] === row)) return;
  const { activeElement } = document;
  const focused = activeElement?.closest("#rows tr")?.dataset.id;
  byId("rows").replaceChildren(...rows);
  if (focused) byId("rows").querySelector(`[data-id="${CSS.escape(focused)}"] ${activeElement.tagName.toLowerCase()}`)?.focus();
}

function show(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  localise(fresh);
  for (const id of PARTS) {
    const now = fresh.getElementById(id);
    if (now && !byId(id).isEqualNode(now)) byId(id).replaceChildren(...now.childNodes);
  }
  showRows(fresh.getElementById("rows"));
  showChoice();
}

function showConnection(state) {
  byId("live").textContent = byId("live").dataset.state = state;
  byId("banner").hidden = state !== "lost";
}

let asked = 0;

async function refresh() {
  const number = ++asked;
  try {
    const response = await fetch(location.href, { headers: { accept: "text/html" } });
    if (number !== asked) return; // a newer question is open
    if (response.ok) show(await response.text());
    showConnection(response.ok ? "live" : "lost");
  } catch {
    if (number === asked) showConnection("lost");
  }
}

// --- filtering --------------------------------------------------------------------------------------------------

let typing = null;

function filter() {
  const fields = [...new FormData(byId("filter"))].filter(([, value]) => value);
  history.replaceState(null, "", `?${new URLSearchParams(fields)}`);
  refresh();
}

byId("filter").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(filter, TYPING_MS); });
byId("filter").addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(typing); filter(); });
byId("choice").addEventListener("change", choose);
byId("clear").addEventListener("click", () => { chosen.clear(); keepChoice(); byId("compare").focus(); });
addEventListener("pageshow", showChoice); // a browser that goes back restores its own ticks
setInterval(() => { if (!document.hidden) refresh(); }, PAUSE_MS);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
localise(document);
showChoice();
showConnection("live");
