// The replies of the latest exchanges, as the server sends them, and the spans that the timeline draws.
import { now } from "./clock.js";
import { natural } from "./dom.js";

const MOST_EXCHANGES = 60;
export const SPANS = {
  receive: { label: "receive or queue", colour: "receiving" },
  train: { label: "train", colour: "training" },
  send: { label: "send", colour: "sending" },
  wait: { label: "wait", colour: "waiting" },
  lost: { label: "lost", colour: "lost" },
  awaited: { label: "at work", colour: "awaited" },
};
let exchanges = new Map();
let bars = new Map();
let awaited = {};

export function append(added) {
  if (added.fresh) [exchanges, bars] = [new Map(), new Map()];
  for (const [key, [round, exchange, opened, closed]] of Object.entries(added.exchanges)) {
    exchanges.set(key, { key, round, exchange, opened, closed });
  }
  for (const [key, bar] of Object.entries(added.bars)) bars.set(key, bar);
  awaited = added.awaited;
  forget();
}

function forget() {
  const kept = list().slice(-MOST_EXCHANGES);
  exchanges = new Map(kept.map((one) => [one.key, one]));
  for (const [key, bar] of bars) if (!exchanges.has(bar[0])) bars.delete(key);
}

export const list = () => [...exchanges.values()].sort((a, b) => a.opened - b.opened);
export const isEmpty = () => exchanges.size === 0;

const ended = (exchange, at) => exchange.closed ?? Math.max(at, exchange.opened);

// A reply's spans in seconds since its exchange opened; null where a time is not known. Without a time of training, the
// client was at work until its reply began.
function spansOf([key, agent, client, train, began, arrived, outcome]) {
  const exchange = exchanges.get(key);
  const end = ended(exchange, now()) - exchange.opened;
  if (outcome === "missing") return [["lost", 0, end]];
  const [b, c] = [began, arrived].map((ms) => (ms === null ? null : ms / 1000));
  const a = train === null || b === null ? null : Math.max(0, b - train / 1000);
  const last = c ?? b ?? end;
  const counts = outcome === "accepted" || outcome === "duplicate";
  return [
    a !== null && ["receive", 0, a],
    a !== null && ["train", a, b],
    a === null && b !== null && ["awaited", 0, b],
    b !== null && c !== null && [counts ? "send" : "lost", b, c],
    exchange.closed !== null && last < end && [counts ? "wait" : "lost", last, end],
  ].filter(Boolean);
}

// How long a reply took to receive, train, send and wait, in seconds as the server's tables have them.
function lengthsOf([key, agent, client, train, began, arrived]) {
  const { opened, closed } = exchanges.get(key);
  const between = (from, to) => (from === null || to === null ? null : Math.max(0, to - from) / 1000);
  const end = closed === null ? null : Math.max(0, Math.round(1000 * (closed - opened)));
  return { receive: between(train, began), train: between(0, train), send: between(began, arrived), wait: between(arrived, end) };
}

export function replyBars() {
  const known = [...bars.values()].map((bar) => (
    { agent: bar[1], client: bar[2], exchange: exchanges.get(bar[0]), outcome: bar[6], spans: spansOf(bar), lengths: lengthsOf(bar) }));
  const open = list().findLast((one) => one.closed === null);
  if (!open) return known;
  const end = ended(open, now()) - open.opened;
  const working = Object.entries(awaited).flatMap(([agent, clients]) => clients.map((client) => (
    { agent, client, exchange: open, outcome: "no reply yet", spans: [["awaited", 0, end]] })));
  return [...known, ...working];
}

// The replies of a board, newest first, as a table shows them.
export function repliesOf(agent) {
  return replyBars().filter((bar) => bar.agent === agent && bar.outcome !== "no reply yet").map(asReply).sort((a, b) => b.round - a.round || b.exchange - a.exchange || a.client - b.client);
}

export function latestReplies() {
  const closed = list().filter((one) => one.closed !== null);
  const newest = closed.length ? closed[closed.length - 1] : list().at(-1);
  return replyBars().filter((bar) => bar.exchange === newest && bar.outcome !== "no reply yet").map(asReply).sort((a, b) => natural(a.agent, b.agent) || a.client - b.client);
}

function asReply({ agent, client, exchange, outcome, lengths }) {
  return { agent, client, round: exchange.round, exchange: exchange.exchange, outcome, ...lengths };
}

// The rows of the timeline: one for each board, with a lane for each client; the slowest board first, or by name.
export function lanes(order) {
  const boards = new Map();
  for (const bar of replyBars()) {
    const row = boards.get(bar.agent) ?? { agent: bar.agent, clients: new Set(), bars: [], slowness: [] };
    boards.set(bar.agent, row);
    row.clients.add(bar.client);
    row.bars.push(bar);
    row.slowness.push(slowness(bar));
  }
  const rows = [...boards.values()].map((row) => (
    { ...row, clients: [...row.clients].sort((a, b) => a - b), slowness: mean(row.slowness) }));
  return rows.sort((a, b) => (order === "slow" ? b.slowness - a.slowness : 0) || natural(a.agent, b.agent));
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

// The share of the exchange after which the reply was there; more than 1 if it did not count.
function slowness(bar) {
  const total = Math.max(0.001, ended(bar.exchange, now()) - bar.exchange.opened);
  if (bar.spans.some(([name]) => name === "lost")) return 2;
  const wait = bar.spans.find(([name]) => name === "wait");
  return 1 - (wait ? (wait[2] - wait[1]) / total : 0);
}
