// Small helpers for the document, the server's events and the reader's choices.
export const byId = (id) => document.getElementById(id);

export function element(tag, text = "", attributes = {}) {
  const node = document.createElement(tag);
  node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// Parse HTML that the server has rendered and escaped, such as rows of a table.
export function parse(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

// Choices stay in this browser. A browser may forbid that.
export function remember(name, value) {
  try { localStorage.setItem(`fedquilt.${name}`, value); } catch { /* the choice holds until the page is closed */ }
}

export function recall(name, otherwise) {
  try { return localStorage.getItem(`fedquilt.${name}`) ?? otherwise; } catch { return otherwise; }
}

// Tie a select or a checkbox to a remembered choice, and call `changed` with its value now and after each change.
export function choice(id, changed) {
  const node = byId(id);
  const isBox = node.type === "checkbox";
  const read = () => (isBox ? String(node.checked) : node.value);
  const before = recall(id, read());
  if (isBox) node.checked = before === "true";
  else if ([...node.options].some((option) => option.value === before)) node.value = before;
  node.addEventListener("change", () => { remember(id, read()); changed(read()); });
  changed(read());
}

// Listeners of the server's events. The connection calls them; each gets the event's data.
const listeners = new Map();

export function onEvent(name, listener) {
  listeners.set(name, [...(listeners.get(name) ?? []), listener]);
}

export function attachListeners(source) {
  for (const [name, calls] of listeners) {
    source.addEventListener(name, (event) => calls.forEach((call) => call(event.data)));
  }
}

// Run `work` before the next paint, once for all calls until then.
export function once(work) {
  let due = false;
  return () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; work(); });
  };
}

// Compare names in natural order: weak-2 before weak-10.
const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
export const natural = (a, b) => collator.compare(a, b) || (a < b ? -1 : Number(a > b));

// Show a tip beside the pointer, inside the window. The style sheet may not have inline styles, but scripts may set them.
export function showTip(event, lines) {
  const tip = byId("tip");
  tip.replaceChildren(...lines.map((line) => element("p", line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 16, innerHeight - height - 8))}px`;
}

export const hideTip = () => { byId("tip").hidden = true; };
