// Changes parts of the page in place: what the reader has selected, focused or opened stays.

// Write only the characters that differ, so that a selection around them stays.
function renewText(node, text) {
  const { data } = node;
  if (data === text) return;
  const most = Math.min(data.length, text.length);
  let head = 0;
  while (head < most && data[head] === text[head]) head += 1;
  let tail = 0;
  while (tail < most - head && data.at(-1 - tail) === text.at(-1 - tail)) tail += 1;
  node.replaceData(head, data.length - head - tail, text.slice(head, text.length - tail));
}

// An equal text is left alone: assistive technology reads an alert again whenever it is written.
export function setText(node, text) {
  if (node.childNodes.length === 1 && node.firstChild.nodeType === Node.TEXT_NODE) renewText(node.firstChild, text);
  else if (node.textContent !== text) node.textContent = text;
}

function renewAttributes(node, wanted) {
  for (const { name } of [...node.attributes]) if (!wanted.hasAttribute(name)) node.removeAttribute(name);
  for (const { name, value } of wanted.attributes) if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// A node becomes a wanted one of the same kind and key. Without keys, the first becomes the first.
const keyOf = ({ id, dataset }) => id || dataset?.key || dataset?.testid || "";
const isSame = (node, wanted) => node.nodeName === wanted.nodeName && keyOf(node) === keyOf(wanted);

export function renewNode(node, wanted) {
  if (node.nodeType !== Node.ELEMENT_NODE) { renewText(node, wanted.data); return; }
  renewAttributes(node, wanted);
  renew(node, wanted.childNodes);
}

// A child that moves loses the selection, so the white space before it makes room.
function place(node, child, at) {
  if (child.parentNode === node) while (node.childNodes[at] !== child && !keyOf(node.childNodes[at])) node.childNodes[at].remove();
  if (node.childNodes[at] !== child) node.insertBefore(child, node.childNodes[at] ?? null);
}

// Give a node the wanted children. Those that it has already stay, with new texts and attributes.
export function renew(node, wanted) {
  const { activeElement } = document;
  const free = [...node.childNodes];
  const children = [...wanted].map((one) => {
    const found = free.findIndex((child) => isSame(child, one));
    if (found < 0) return one;
    const [child] = free.splice(found, 1);
    renewNode(child, one);
    return child;
  });
  free.forEach((child) => child.remove());
  children.forEach((child, at) => place(node, child, at));
  if (node.contains(activeElement) && document.activeElement !== activeElement) activeElement.focus({ preventScroll: true });
}
