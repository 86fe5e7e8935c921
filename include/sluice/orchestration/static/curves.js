// Curves: small ones as plain SVG, large ones by uPlot, which is loaded when the first one is drawn.

import { el } from "./dom.js";

// A curve of equally spaced values; null: not known.
export function spark(values, label, width = 160, height = 34) {
  const known = values.filter((value) => value !== null);
  if (!known.length) return "";
  const max = Math.max(...known, 1), at = (i) => (i / (values.length - 1)) * width;
  let path = "", open = false;
  values.forEach((value, i) => {
    if (value === null) { open = false; return; }
    path += `${open ? "L" : "M"}${at(i).toFixed(1)},${(height - 2 - (value / max) * (height - 4)).toFixed(1)}${open ? "" : "h0.1"}`;
    open = true;
  });
  return el("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, preserveAspectRatio: "none" },
    el("path", { d: path }));
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const SERIES = ["--accent", "--curve-2", "--curve-3", "--curve-4", "--curve-5", "--curve-6"];

const two = (n) => String(n).padStart(2, "0");
const moment = (at, step) => {
  const d = new Date(at * 1000);
  return step < 86_400 ? `${two(d.getHours())}:${two(d.getMinutes())}` : `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
};
// The values with neither neighbour: they would not be seen without a point.
const alone = (values) => [...values.keys()].filter((i) => values[i] !== null && (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null);

let loading = null;
const library = () => loading ??= new Promise((resolve, reject) => {
  const script = el("script", { src: new URL("./vendor/uPlot.iife.min.js", import.meta.url) });
  script.onload = () => resolve(window.uPlot);
  script.onerror = () => { loading = null; script.remove(); reject(new Error("the curves' library did not load")); };
  document.head.append(script);
});

// A plot below `place`: `data` is [seconds, values, values, …]; `series`: [{label, format}]. Returns a function that
// gives it other data.
export async function plot(place, { data, series, format, label, press = null, height = 190 }) {
  const UPlot = await library();
  let drawn = null, last = data;
  const axis = () => ({ stroke: color("--ink-3"), grid: { stroke: color("--grid"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, font: "12px system-ui, sans-serif" });
  const draw = () => {
    drawn?.destroy();
    const width = Math.max(place.clientWidth, 260);
    drawn = new UPlot({
      width, height, cursor: { points: { size: 7 }, drag: { x: false, y: false } },
      legend: { live: true },
      scales: { x: { time: true }, y: { range: (u, min, max) => [0, Math.max(max || 0, 1e-9) * 1.08] } },
      axes: [{ ...axis(), values: (u, ticks, _, space, step) => ticks.map((at) => moment(at, step)) }, { ...axis(), size: 72, values: (u, ticks) => ticks.map(format) }],
      series: [{ label: "Time", value: (u, at) => (at === null ? "—" : new Date(at * 1000).toISOString().slice(0, 16).replace("T", " ")) },
        ...series.map((one, i) => ({
          label: one.label, stroke: color(SERIES[i % SERIES.length]), width: 1.8, spanGaps: false, points: { show: false, filter: (u, i) => alone(u.data[i]), size: 5 },
          value: (u, value) => (value === null || value === undefined ? "—" : format(value)),
        }))],
    }, last, place);
    drawn.root.setAttribute("role", "img");
    drawn.root.setAttribute("aria-label", label);
    if (press) drawn.over.addEventListener("click", () => { if (drawn.cursor.idx !== null) press(drawn.cursor.idx); });
  };
  draw();
  const again = () => { if (place.isConnected) draw(); };
  window.addEventListener("resize", again);
  document.addEventListener("scheme", again);
  return (next) => { last = next; drawn.setData(next); };
}
