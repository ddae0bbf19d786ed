// Tells assistive technology about the phase, the round and the worst problem: one sentence, every few seconds at most.
import { byId } from "./dom.js";

const PAUSE_MS = 5000;

function sentence() {
  const text = (id) => {
    const node = document.querySelector(`[data-testid=${id}]`)?.cloneNode(true);
    node?.querySelectorAll("[aria-hidden]").forEach((one) => one.remove());
    return node?.textContent.trim().replace(/\s+/g, " ");
  };
  const problem = text("problem");
  return `Round ${text("round")}, ${text("phase")}.${problem ? ` ${problem}` : ""}`;
}

export function startAnnouncer() {
  let last = sentence();
  let spoken = -PAUSE_MS;
  let timer = null;
  const announce = () => {
    timer = null;
    const now = sentence();
    if (now === last) return;
    byId("announcer").textContent = last = now;
    spoken = performance.now();
  };
  document.addEventListener("htmx:sseMessage", () => {
    timer ??= setTimeout(announce, Math.max(500, spoken + PAUSE_MS - performance.now()));
  });
}
