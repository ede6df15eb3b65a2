// Lines with uPlot: one axis for all of them, made by the server; here they are only drawn.
import { bytes, colour, compact, css, duration, fill, h, isDark, number } from "./dom.js";

const HEIGHT = 250;
// How far back smoothing looks: the share of the axis after which a point counts 1/e.
export const SMOOTHING = { off: 0, light: 0.02, strong: 0.06 };
const alpha = (hex, a) => (hex.startsWith("#") ? hex + Math.round(a * 255).toString(16).padStart(2, "0") : hex.replace(")", ` / ${a})`));

export class Chart {
  // place: an element. options: {title, share, size, stack, band, each, dots, log}
  constructor(place, options = {}) {
    this.options = options;
    this.plot = h("div", { class: "plot", role: "img", "aria-label": options.title });
    this.legend = h("div", { class: "legend", "aria-live": "off" });
    fill(place, this.plot, this.legend);
    this.shape = "";
    this.made = null;
    this.watch = new ResizeObserver(() => this.made && this.plot.clientWidth && this.made.setSize({ width: this.plot.clientWidth, height: HEIGHT }));
    this.watch.observe(this.plot);
  }

  draw(data, { hidden, axis, smoothing }) {
    const lines = data.lines.filter((one) => one.member === null || !hidden.has(one.member));
    this.marks = data.marks || [];
    this.axis = axis;
    const reach = this.options.stack || this.options.dots ? 0 : SMOOTHING[smoothing] ?? 0;
    this.drawn = lines.map((one) => (reach ? { ...one, y: smoothed(data.x, one.y, reach) } : one));
    const raw = reach ? lines.map((one) => one.y) : [];
    const bands = this.bandOf(lines, data.x.length);
    const values = [data.x, ...bands, ...raw, ...(this.options.stack ? stacked(lines) : this.drawn.map((one) => one.y))];
    // A new plot only if there are other lines; otherwise the zoom and the cursor stay.
    const shape = JSON.stringify([axis, isDark(), bands.length, raw.length, data.best ?? null, lines.map((one) => [one.name, one.member])]);
    if (shape === this.shape && this.made) this.made.setData(values);
    else this.build(values, lines, bands.length, raw.length, data);
    this.shape = shape;
    const last = data.x.length ? `, ${axis === "time" ? duration(data.x.at(-1)) : `${number(data.x.at(-1))} steps`}` : "";
    this.plot.setAttribute("aria-label", `${this.options.title}: ${lines.length} ${lines.length === 1 ? "line" : "lines"}${last}`);
    this.tell(null);
  }

  bandOf(lines, size) {
    const { band, dots } = this.options;
    if (lines.length === 1) return lines[0].low ? [lines[0].low, lines[0].high] : [];
    if (this.options.each && lines.every((one) => one.low)) return lines.flatMap((one) => [one.low, one.high]);
    if ((!band && !dots) || lines.length === 0) return [];
    // Of evaluations it is not drawn, but the vertical axis has to have room for the bars.
    const filled = dots ? lines.flatMap((one) => [one.low, one.high]) : lines.map((one) => interpolated(one.y));
    const low = new Array(size).fill(null), high = new Array(size).fill(null);
    for (let i = 0; i < size; i++) {
      for (const one of filled) {
        if (one[i] === null) continue;
        low[i] = low[i] === null ? one[i] : Math.min(low[i], one[i]);
        high[i] = high[i] === null ? one[i] : Math.max(high[i], one[i]);
      }
    }
    return [low, high];
  }

  build(values, lines, extra, raw, data) {
    this.made?.destroy();
    const { share, stack, dots } = this.options;
    const log = this.options.log && values.slice(1).every((one) => one.every((v) => v === null || v > 0));
    const write = share ? (v) => `${Math.round(v * 100)} %` : this.options.size ? bytes : compact;
    const faint = { width: 0, points: { show: false }, spanGaps: true, stroke: "transparent" };
    const series = [{}, ...Array.from({ length: extra }, () => ({ ...faint })), ...lines.slice(0, raw).map((one, n) => ({ ...faint, width: 1, stroke: alpha(colour(one.member ?? n), 0.3) }))];
    lines.forEach((one, n) => {
      const stroke = colour(one.member ?? n);
      const best = data.best !== null && data.best !== undefined && one.member === data.best && lines.length > 1;
      series.push({
        stroke, width: best ? 3 : 1.6, spanGaps: true, alpha: 1, dash: /wait|batches/.test(one.name) ? [6, 4] : undefined,
        points: { show: dots === true ? true : data.x.length < 3, size: 6, fill: stroke }, fill: stack ? alpha(stroke, 0.55) : undefined,
      });
    });
    const each = this.options.each && extra > 2;
    const bands = each ? lines.map((one, n) => ({ series: [2 + 2 * n, 1 + 2 * n], fill: alpha(colour(one.member ?? n), 0.14) })) : extra && !dots ? [{ series: [2, 1], fill: alpha(lines.length === 1 ? colour(lines[0].member ?? 0) : css("--soft"), 0.16) }] : [];
    if (stack) lines.forEach((_, n) => n && bands.push({ series: [1 + n, n], fill: alpha(colour(lines[n].member ?? n), 0.55) }));
    const tick = { stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 }, font: "12px system-ui, sans-serif" };
    this.made = new uPlot({
      width: Math.max(220, this.plot.clientWidth), height: HEIGHT, series, bands,
      legend: { show: false },
      cursor: { sync: { key: `x-${this.axis}` }, points: { size: 7 }, drag: { x: true, y: false } },
      scales: { x: { time: false }, y: log ? { distr: 3, range: logRange } : { range: share ? shareRange : this.options.size ? sizeRange : padded } },
      axes: [
        { ...tick, size: 34, space: 70, incrs: WHOLE, values: (_, at) => (this.axis === "time" ? at.map(duration) : distinct(at, compact)) },
        { ...tick, ...(this.options.size ? { size: 70, incrs: WHOLE.map((n) => n * 2 ** 20) } : { size: 56 }), values: (_, at) => (log ? at.map((v) => (v === null ? "" : v.toPrecision(1))) : distinct(at, write)) },
      ],
      hooks: { setCursor: [(u) => this.tell(u.cursor.idx ?? null)], draw: [(u) => this.mark(u)] },
    }, values, this.plot);
  }

  mark(u) {
    const ctx = u.ctx;
    ctx.save();
    if (this.options.dots) this.bars(u);
    ctx.strokeStyle = css("--warn");
    ctx.setLineDash([2, 4]);
    for (const at of this.marks) {
      if (at === null || at < u.scales.x.min || at > u.scales.x.max) continue;
      const x = Math.round(u.valToPos(at, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, u.bbox.top);
      ctx.lineTo(x, u.bbox.top + u.bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  // Intervals of evaluations.
  bars(u) {
    this.drawn.forEach((one, n) => {
      u.ctx.strokeStyle = colour(one.member ?? n);
      u.ctx.lineWidth = 1.5;
      u.data[0].forEach((at, i) => {
        if (!one.low || one.low[i] === null || at < u.scales.x.min || at > u.scales.x.max) return;
        const x = Math.round(u.valToPos(at, "x", true));
        u.ctx.beginPath();
        u.ctx.moveTo(x, u.valToPos(one.low[i], "y", true));
        u.ctx.lineTo(x, u.valToPos(one.high[i], "y", true));
        u.ctx.stroke();
      });
    });
  }

  // The numbers under the cursor, or the last ones.
  tell(index) {
    const write = this.options.share ? (v) => `${(100 * v).toFixed(1)} %` : this.options.size ? bytes : number;
    const items = this.drawn.slice(0, 24).map((one, n) => {
      const value = index === null ? newest(one.y, one.y.length - 1, Infinity) : newest(one.y, index);
      return h("span", {}, h("i", { class: "swatch", style: { background: colour(one.member ?? n) } }), one.name, h("b", {}, value === null ? "–" : write(value)));
    });
    const at = index === null || !this.made ? null : this.made.data[0][index];
    const where = at === null || at === undefined ? null : h("span", {}, this.axis === "time" ? `at ${duration(at)}` : `at step ${number(at)}`);
    const more = this.drawn.length > items.length ? h("span", {}, `and ${this.drawn.length - items.length} more`) : null;
    fill(this.legend, where, ...items, more);
  }
}

function newest(values, index, reach = 200) {
  for (let i = index; i >= 0 && i > index - reach; i--) if (values[i] !== null && values[i] !== undefined) return values[i];
  return null;
}

// An exponential moving average over the axis, so that it does not depend on how many points there are.
function smoothed(x, y, reach) {
  const span = reach * (x.at(-1) - x[0]);
  let sum = 0, weight = 0, last = -Infinity;
  return y.map((value, i) => {
    if (value === null) return null;
    const kept = Math.exp((last - x[i]) / span);
    last = x[i];
    sum = sum * kept + value;
    weight = weight * kept + 1;
    return sum / weight;
  });
}

function interpolated(values) {
  const found = values.slice();
  let last = -1;
  for (let i = 0; i < found.length; i++) {
    if (values[i] === null) continue;
    if (last >= 0) for (let j = last + 1; j < i; j++) found[j] = values[last] + ((values[i] - values[last]) * (j - last)) / (i - last);
    last = i;
  }
  return found;
}

function stacked(lines) {
  const sums = [];
  for (const one of lines) {
    const below = sums.at(-1);
    sums.push(interpolated(one.y).map((v, i) => (v === null ? null : v + (below?.[i] ?? 0))));
  }
  return sums;
}

// Ticks that are close together need all their digits.
function distinct(at, write) {
  const texts = at.map((v) => (v === null ? "" : write(v)));
  return new Set(texts).size === texts.length ? texts : at.map((v) => (v === null ? "" : number(v)));
}

const shareRange = () => [0, 1];
// Ticks are whole MiB, so there is room for some.
const sizeRange = (_, low, high) => (low === null ? [0, 1] : padded(_, low - 2 ** 21, high + 2 ** 21));
// It begins at a multiple of a power of ten, since uPlot counts its ticks from there.
function logRange(_, low, high) {
  if (low === null) return [0.1, 1];
  const power = 10 ** Math.floor(Math.log10(low / 1.1));
  return [Number((Math.floor(low / 1.1 / power) * power).toPrecision(1)), high * 1.1];
}
// There are no halves of steps, and a clock shows no halves of seconds.
const WHOLE = Array.from({ length: 13 }, (_, n) => [1, 2, 5].map((m) => m * 10 ** n)).flat();
function padded(_, low, high) {
  if (low === null || high === null) return [0, 1];
  const width = high - low > 1e-9 * Math.abs(high) ? high - low : 0;  // a constant that was averaged is off by a rounding error
  const room = width * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low < width ? 0 : low - room, high + room];
}
