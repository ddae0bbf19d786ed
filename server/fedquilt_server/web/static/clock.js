// Times, by the server's clock: a board's or a reader's clock may be wrong.
let skew = 0;

export const setClock = (seconds) => { skew = seconds - Date.now() / 1000; };
export const now = () => Date.now() / 1000 + skew;

const two = (n) => String(n).padStart(2, "0");

// Without the browser's formatter: to make one takes longer than all else that the page does with times.
export function timeOfDay(at) {
  const time = new Date((at - skew) * 1000);
  return [time.getHours(), time.getMinutes(), time.getSeconds()].map(two).join(":");
}

function ago(at) {
  const seconds = Math.max(0, Math.round(now() - at));
  if (seconds < 2) return "just now";
  if (seconds < 60) return `${seconds} s ago`;
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min ago` : `at ${timeOfDay(at)}`;
}

function countdown(deadline) {
  const seconds = Math.ceil(deadline - now());
  if (seconds <= 0) return "deadline passed";
  return `closes in ${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
}

function updateTexts(root, name, text) {
  for (const node of root.querySelectorAll(`[data-${name}]`)) {
    const at = Number(node.dataset[name]);
    const written = at && Math.abs(at) < 1e11 ? text(at) : "–";
    if (node.textContent !== written) node.textContent = written;
  }
}

// Rewrite the relative times below a node: a second has passed, or the node is new.
export function tick(root = document) {
  updateTexts(root, "at", timeOfDay);
  updateTexts(root, "ago", ago);
  updateTexts(root, "deadline", countdown);
}

export function updateTitle() {
  const round = document.querySelector("[data-testid=round]");
  const name = document.querySelector("h1");
  if (round && name) document.title = `${round.textContent} · ${name.textContent} · fedquilt`;
}
