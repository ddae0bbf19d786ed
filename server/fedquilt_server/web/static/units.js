// Values for people, as the server formats them in status/units.py.
const SUM_ERROR = 1e-12; // by which shares that add up to 1 may differ from it
const MOST_DECIMALS = 6; // of a percentage that tell a share from 0 and from 1

export const isNumber = (v) => v !== null && Number.isFinite(v);

// Only 0 is "0 %" and only 1 is "100 %": other shares get more decimals.
export function percent(share, digits = 1) {
  if (!isNumber(share)) return "–";
  if (share < 0) return `-${percent(-share, digits)}`;
  if (Math.abs(share - 1) <= SUM_ERROR) share = 1;
  for (let decimals = digits; decimals <= MOST_DECIMALS; decimals += 1) {
    const text = (100 * share).toFixed(decimals);
    if (share === 0 || share === 1 || ![0, 100].includes(Number(text))) return `${text} %`;
  }
  return share < 0.5 ? "< 0.000001 %" : "> 99.999999 %";
}

const threeDigits = (v) => (Math.abs(Number(v.toFixed(1))) < 100 ? v.toFixed(1) : v.toFixed(0));

// Format a size in the first unit in which it is less than 1000 after rounding. `digits`: decimals in each unit.
export function scaled(v, units, digits = null) {
  if (!isNumber(v)) return "–";
  const last = units.length - 1;
  for (let power = 0; ; [v, power] = [v / 1000, power + 1]) {
    const text = digits ? v.toFixed(digits(power)) : power ? threeDigits(v) : v.toFixed(0);
    if (power === last || Math.abs(Number(text)) < 1000) return `${text} ${units[power]}`;
  }
}

export const BYTES = ["B", "kB", "MB", "GB", "TB"];
export const JOULES = ["J", "kJ", "MJ", "GJ"];

const two = (n) => String(n).padStart(2, "0");

export const inSeconds = (v) => `${Number(v.toFixed(2)) < 10 ? v.toFixed(2) : v.toFixed(1)} s`;

export function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  if (Number(seconds.toFixed(1)) < 60) return inSeconds(seconds);
  const whole = Number(seconds.toFixed(0));
  const minutes = Math.floor(whole / 60);
  return minutes < 60 ? `${minutes} min ${two(whole % 60)} s` : `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
}
