// The points of the curves, as the server sends them, and the columns that each chart draws.
import { BYTES, JOULES, inSeconds, percent, scaled } from "./units.js";

const COLUMNS = ["round", "value", "personal", "loss", "down", "up", "sending", "training", "waiting", "averaging", "joules", "bytes", "seconds"];
export const points = Object.fromEntries(COLUMNS.map((name) => [name, []]));
export const run = { measure: "", title: "", share: false };
export const STACK = ["training", "sending", "averaging", "waiting"];

export function append(added) {
  for (const name of COLUMNS) {
    points[name].length = added.start;
    points[name].push(...added[name]);
  }
  setMeasure(added);
}

// The score in the column "value": its name, its heading, and whether it is from 0 to 1.
export function setMeasure({ measure, title, share }) {
  Object.assign(run, { measure, title, share });
}

export const isKnown = (name) => points[name].some((v) => v !== null);

// The layers of a stack: each is the sum of its own part and of the parts below it.
export function stacked(names) {
  let below = points.round.map(() => 0);
  return names.map((name) => (below = below.map((v, i) => v + (points[name][i] ?? 0))));
}

// Decimals of a multiple of the step: 1 for 0.5, 2 for 0.25. One digit of a step such as 0.0437 is enough.
function digitsFor(step) {
  const least = Math.ceil(-Math.log10(step) - 1e-9);
  const isWhole = (v) => Math.abs(v - Math.round(v)) < 1e-6;
  const isShort = isWhole(step * 10 ** least) || !isWhole(step * 10 ** (least + 1));
  return Math.min(12, Math.max(0, isShort ? least : least + 1));
}

const quantity = (units) => ({
  tick: (v, step) => scaled(v, units, (power) => digitsFor(step / 1000 ** power)),
  show: (v) => scaled(v, units),
});

const plainTick = (v, step) => (Math.abs(v) >= 1e5 ? v.toExponential(1) : v.toFixed(digitsFor(step)));

// The server sends six digits, so no more are shown.
function plainText(v) {
  if (Math.abs(v) >= 1e5) return v.toExponential(3);
  return Math.abs(v) >= 10 ? v.toPrecision(6) : v.toFixed(4);
}

const plain = { tick: plainTick, show: plainText };
const share = { tick: (v, step) => `${(100 * v).toFixed(Math.max(0, digitsFor(step) - 2))} %`, show: (v) => percent(v, 2) };
const size = quantity(BYTES);
const energy = quantity(JOULES);
const time = { tick: (v, step) => `${v.toFixed(digitsFor(step))} s`, show: inSeconds };

export const X = {
  round: { label: "Round", tick: (v) => String(v), show: (v) => String(v) },
  bytes: { label: "Bytes", ...size },
  seconds: { label: "Seconds", tick: time.tick, show: (v) => `${v.toFixed(0)} s` },
};

// What each chart shows now: its title, format and lines. Lines differ in dash and mark, not only in hue.
export function specs() {
  const both = isKnown("personal");
  const first = { column: "value", label: both ? "Global" : run.title, colour: "accuracy", mark: "circle" };
  const second = { column: "personal", label: "Personal", colour: "personal", dash: [7, 4], mark: "square" };
  return {
    value: { title: run.title, ...(run.share ? share : plain), most: run.share ? 1 : null, lines: both ? [first, second] : [first] },
    loss: { title: "Loss", ...plain, lines: [{ column: "loss", label: "Loss", colour: "loss", mark: "circle" }] },
    traffic: { title: "Bytes per round", ...size, zero: true, lines: [
      { column: "down", label: "Down", colour: "down", mark: "circle" },
      { column: "up", label: "Up", colour: "up", dash: [7, 4], mark: "square" },
    ] },
    energy: { title: "Energy per round", ...energy, zero: true, lines: [{ column: "joules", label: "Boards that report it", colour: "joules", mark: "circle" }] },
    time: { title: "Seconds per round", ...time, zero: true, stack: true, lines: STACK.map((name) => (
      { column: name, label: name[0].toUpperCase() + name.slice(1), colour: name })) },
  };
}

// Where the y axis of a chart begins, if not at 0.
export function axisNote(uplot, spec) {
  const { min = 0, max = 0 } = uplot?.scales.y ?? {};
  return min > 0 ? `axis begins at ${spec.tick(min, (max - min) / 10)}` : "";
}
