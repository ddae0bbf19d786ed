// The event stream, and the banner that shows its state. htmx opens the stream; the parts of the page change in place.
import { keepTime, now, setClock, stopClock, tick, timeOfDay, updateTitle } from "./clock.js";
import { attachListeners, byId } from "./dom.js";
import { renew, setText } from "./renew.js";

const SILENCE_MS = 15000; // three of the server's heartbeats
const ENDED = ["finished", "failed", "stopped", "interrupted", "unknown", "damaged"];
let source = null;
let lastHeartbeat = Date.now();
let lastFrame = "";
let isStarting = false; // the coordinator is there again, but it has not loaded its run

const phase = () => document.querySelector("[data-phase]")?.dataset.phase;

function showConnection(state) {
  const ended = ENDED.includes(phase());
  const live = byId("live");
  const recorded = state === "live" && document.querySelector("[data-recorded]");
  live.dataset.state = ended ? "ended" : recorded ? "from files" : state;
  setText(live, live.dataset.state);
  const banner = byId("banner");
  const isLost = state === "lost";
  if (banner.hidden === isLost) banner.hidden = !isLost;
  banner.classList.toggle("calm", ended);
  if (isLost) setText(banner, reason(ended));
}

function reason(ended) {
  const { server } = document.body.dataset;
  return ended
    ? `The ${server} has stopped. The page shows the ${server === "coordinator" ? "final" : "last"} state of the run.`
    : `${isStarting ? `The ${server} is starting` : `Connection to the ${server} lost`}. The page shows the state at ${timeOfDay(now())}. ${isStarting ? "Loading" : "Reconnecting"}…`;
}

function showLost() {
  isStarting = false;
  stopClock();
  showConnection("lost");
}

// A page that shows a run keeps it until the coordinator has loaded.
function onStarting() {
  lastHeartbeat = Date.now();
  isStarting = true;
  showConnection("lost");
}

function onClock(event) {
  lastHeartbeat = Date.now();
  setClock(Number(event.data));
  keepTime();
  showConnection("live");
}

// A broken network may leave the stream open without any event. Close it after a while; htmx then opens a new one.
function checkHeartbeat() {
  if (source && Date.now() - lastHeartbeat > SILENCE_MS) {
    lastHeartbeat = Date.now();
    source.close();
    source.onerror(new Event("error"));
  }
}

function renewPart(style, part, fragment) {
  if (style !== "renew") return false;
  tick(fragment);
  renew(part, fragment.childNodes);
  return [];
}

export function connect() {
  htmx.defineExtension("renew", { handleSwap: renewPart });
  // htmx's extension calls this to open the stream. It knows only the frame with which the page was loaded.
  htmx.createEventSource = (url) => {
    source = new EventSource(lastFrame ? `events?frame=${encodeURIComponent(lastFrame)}` : url);
    source.addEventListener("clock", onClock);
    source.addEventListener("starting", onStarting);
    source.addEventListener("frame", (event) => { lastFrame = event.data; keepTime(); });
    attachListeners(source);
    return source;
  };
  document.addEventListener("htmx:sseError", showLost);
  document.addEventListener("htmx:sseMessage", () => { updateTitle(); showConnection("live"); });
  setClock(Number(document.body.dataset.now));
  keepTime();
  setInterval(() => { tick(); checkHeartbeat(); }, 1000);
}
