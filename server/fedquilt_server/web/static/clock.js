// Times, by the server's clock: a board's or a reader's clock may be wrong.
import { setText } from "./renew.js";

const SAMPLES = 12; // those of a minute: a clock that is set meanwhile shows soon
const LEAST_SKEW = 2; // seconds: clocks that differ by less are taken as equal
let samples = [];
let skew = 0;
let latest = 0; // when the server has sent something
let isRunning = true;

// A message arrives late, never early: the largest difference between the clocks has the least delay in it.
export function setClock(seconds) {
  samples = [...samples, seconds - Date.now() / 1000].slice(-SAMPLES);
  const largest = Math.max(...samples);
  skew = Math.abs(largest) < LEAST_SKEW ? 0 : largest;
}

export const now = () => (isRunning ? Date.now() / 1000 + skew : latest);

// The server has sent something.
export function keepTime() {
  isRunning = true;
  latest = now();
}

// Without a connection, nobody knows how long a state has lasted: the clock stops when the server last sent something.
export function stopClock() {
  isRunning = false;
  tick();
}

const two = (n) => String(n).padStart(2, "0");

const readersTime = (at) => new Date((at - skew) * 1000);

// Without the browser's formatter: to make one takes longer than all else that the page does with times.
export function timeOfDay(at) {
  const time = readersTime(at);
  return [time.getHours(), time.getMinutes(), time.getSeconds()].map(two).join(":");
}

// The time of day, with its date unless that is today.
export function moment(at) {
  const time = readersTime(at);
  if (time.toDateString() === new Date().toDateString()) return timeOfDay(at);
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ${timeOfDay(at)}`;
}

function ago(at) {
  const seconds = Math.max(0, Math.round(now() - at));
  if (seconds < 2) return "just now";
  if (seconds < 60) return `${seconds} s ago`;
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min ago` : `at ${moment(at)}`;
}

function countdown(deadline) {
  const seconds = Math.ceil(deadline - now());
  if (seconds <= 0) return "deadline passed";
  return `closes in ${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
}

function updateTexts(root, name, text) {
  for (const node of root.querySelectorAll(`[data-${name}]`)) {
    const at = Number(node.dataset[name]);
    setText(node, at && Math.abs(at) < 1e11 ? text(at) : "–");
  }
}

// Rewrite the relative times below a node: a second has passed, or the node is new.
export function tick(root = document) {
  updateTexts(root, "at", timeOfDay);
  updateTexts(root, "moment", moment);
  updateTexts(root, "ago", ago);
  updateTexts(root, "deadline", countdown);
}

export function updateTitle() {
  const round = document.querySelector("[data-testid=round]");
  const name = document.querySelector("h1");
  if (round && name) document.title = `${round.textContent} · ${name.textContent} · fedquilt`;
}
