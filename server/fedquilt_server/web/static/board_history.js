// What each board has reported since the page was opened: the server sends only the latest values.
import { now } from "./clock.js";

const MOST = 600;
export const MEASURES = {
  temperature: { label: "Temperature", unit: "°C", column: "temperature" },
  power: { label: "Power", unit: "W", column: "power" },
  memory_share: { label: "Memory", unit: "%", column: "memory_share" },
  progress: { label: "Training", unit: "%", column: "progress" },
};
const histories = new Map();
const watchers = new Set();

function read(row, name) {
  const node = row.querySelector(`[data-cell="${name}"]`);
  if (node.tagName === "PROGRESS") return node.hidden ? null : 100 * node.value;
  const found = /-?\d+(\.\d+)?/.exec(node.textContent);
  return found ? Number(found[0]) : null;
}

// Keep the values that a row shows now.
export function record(row) {
  const { agent } = row.dataset;
  const history = histories.get(agent) ?? { at: [], ...Object.fromEntries(Object.keys(MEASURES).map((name) => [name, []])) };
  histories.set(agent, history);
  history.at.push(now());
  for (const name of Object.keys(MEASURES)) history[name].push(read(row, name));
  if (history.at.length > MOST) for (const values of Object.values(history)) values.shift();
  for (const watch of watchers) watch(agent);
}

export const historyOf = (agent) => histories.get(agent);
export const watchHistories = (watch) => watchers.add(watch);
