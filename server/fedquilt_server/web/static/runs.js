// The list of runs: it stays up to date, filters while one types, and keeps what is chosen for a comparison.
import { byId } from "./dom.js";
import { renew, setText } from "./renew.js";

const PAUSE_MS = 3000;
const TYPING_MS = 250;
const PARTS = ["counts", "matching", "nothing", "pages", "rows"];
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
  setText(byId("compare"), chosen.size ? `Compare ${chosen.size}` : "Compare");
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

function show(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  localise(fresh);
  for (const id of PARTS) {
    const now = fresh.getElementById(id);
    if (now) renew(byId(id), now.childNodes);
  }
  showChoice();
}

function showConnection(state) {
  byId("live").dataset.state = state;
  setText(byId("live"), state);
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
