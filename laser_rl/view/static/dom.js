// Elements are made, never parsed: whatever a run is called, it is text.
export function h(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") made.className = value;
    else if (name === "style") Object.assign(made.style, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((one) => one !== null && one !== undefined).map((one) => (one instanceof Node ? one : String(one))));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";
export function svg(tag, props = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

export const fill = (element, ...children) => element.replaceChildren(...children.filter((one) => one !== null && one !== undefined));

const NONE = "–";
const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const none = (value) => value === null || value === undefined || Number.isNaN(value);
const power = (value, most) => Number(value.toPrecision(most)).toExponential();
export const number = (value) => (none(value) ? NONE : value !== 0 && Math.abs(value) < 1e-3 ? power(value, 4) : Math.abs(value) >= 1e4 ? whole.format(value) : digits.format(value));
export const count = (value) => (none(value) ? NONE : whole.format(value));
export const compact = (value) => (none(value) ? NONE : Math.abs(value) < 100 ? digits.format(value) : short.format(value));
export const exponent = (value) => (value !== 0 && Math.abs(value) < 0.01 ? power(value, 3) : compact(value));
export const share = (value) => (none(value) ? NONE : `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`);
export const bytes = (value) => (none(value) ? NONE : value >= 2 ** 30 ? `${(value / 2 ** 30).toFixed(1)} GiB` : `${(value / 2 ** 20).toFixed(0)} MiB`);
export const clock = (seconds) => (none(seconds) ? NONE : new Date(seconds * 1000).toLocaleString());
export function duration(seconds) {
  if (none(seconds)) return NONE;
  const s = Math.max(0, Math.round(seconds));
  const two = (n) => String(n).padStart(2, "0");
  return s >= 3600 ? `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}` : `${Math.floor(s / 60)}:${two(s % 60)}`;
}

const LIGHT = ["#1d55d0", "#c2600a", "#14804a", "#c22a50", "#6d3fc9", "#0b7f95", "#7d6113", "#b8368f", "#4f7010", "#596273"];
const DARK = ["#7fb0ff", "#ffae57", "#4fd08b", "#ff7a94", "#b294ff", "#4fd3e6", "#d8bd6a", "#ff8fd4", "#a7d14b", "#a7b0be"];
export const isDark = () => document.documentElement.dataset.theme === "dark";
export function colour(member) {
  const palette = isDark() ? DARK : LIGHT;
  if (member < palette.length) return palette[member];
  return `hsl(${Math.round((member * 137.5) % 360)} ${isDark() ? "70% 68%" : "65% 38%"})`;
}
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
