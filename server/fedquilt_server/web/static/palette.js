// Colours and patterns: one colour for one quantity everywhere, and each pattern differs from the others without hue.
// They are read once for each theme: reading them makes the browser compute the style of the whole page.
const known = new Map();

export function colour(name) {
  if (!known.has(name)) known.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return known.get(name);
}

const TILE = 8;

// Each draws on a square tile of TILE pixels, which repeats.
const PATTERNS = {
  training: () => {},
  sending: (pen) => { line(pen, 0, TILE, TILE, 0); line(pen, -2, 2, 2, -2); line(pen, 6, 10, 10, 6); },
  receiving: (pen) => { dot(pen, 2, 2); dot(pen, 6, 6); },
  averaging: (pen) => { line(pen, 2, 0, 2, TILE); line(pen, 6, 0, 6, TILE); },
  waiting: (pen) => { line(pen, 0, 4, TILE, 4); },
  lost: (pen) => { line(pen, 0, 0, TILE, TILE); line(pen, 0, TILE, TILE, 0); },
  awaited: (pen) => { line(pen, 0, 0, TILE, TILE); },
};
const FILLED = ["training"];

function line(pen, a, b, c, d) {
  pen.beginPath();
  pen.moveTo(a, b);
  pen.lineTo(c, d);
  pen.stroke();
}

function dot(pen, x, y) {
  pen.beginPath();
  pen.arc(x, y, 1.2, 0, 7);
  pen.fill();
}

// Return a fill for a quantity: its colour, lighter below the pattern.
export function patternOf(name, context) {
  const hue = colour(name);
  if (FILLED.includes(name)) return hue;
  const tile = document.createElement("canvas");
  tile.width = tile.height = TILE;
  const pen = tile.getContext("2d");
  pen.fillStyle = `${hue}38`;
  pen.fillRect(0, 0, TILE, TILE);
  pen.strokeStyle = pen.fillStyle = hue;
  pen.lineWidth = name === "lost" ? 1.6 : 1.2;
  PATTERNS[name](pen);
  return context.createPattern(tile, "repeat");
}

const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => known.clear());
export const onTheme = (redraw) => dark.addEventListener("change", redraw);

// Make a canvas sharp on any screen, and return its context with the page's pixels as units.
export function prepareCanvas(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  return context;
}
