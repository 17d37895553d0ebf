// Lines over time, by uPlot, which is fetched when the first chart is shown.

import { h } from "./dom.js";
import { axisTime, date, rate, span, time } from "./words.js";

const HEIGHT = 190;
let loading;

function load() {
  loading ??= new Promise((done, failed) => {
    document.head.append(h("link", { rel: "stylesheet", href: "/dashboard/vendor/uplot.css" }));
    const script = h("script", { src: "/dashboard/vendor/uplot.js" });
    script.onload = () => done(window.uPlot);
    script.onerror = () => {
      loading = undefined;
      failed(new Error("The charting library could not be fetched."));
    };
    document.head.append(script);
  });
  return loading;
}

/** What a variable of the style comes to, as a colour that a canvas understands. */
function color(name) {
  const probe = h("span", {});
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

export const box = (name, label) => h("div", { class: "chart", "data-keep": "", "data-chart": name, role: "img", "aria-label": label });

const charts = new WeakMap();
/** Values without neighbours, which no line shows. */
const alone = (values) =>
  values.flatMap((value, n) =>
    (value ?? null) !== null && (values[n - 1] ?? null) === null && (values[n + 1] ?? null) === null ? [n] : [],
  );
/** The newest length of time that is over: what is shown while nobody points at another. */
const newest = (times) => Math.max(times.length - 2, 0);
/** Lengths of time up to this, in seconds, are told as now. */
const NOW_S = 15;

/** Draws lines into a box, or brings them up to date. `lines`: name, color, and values; null is a hole. */
export async function draw(element, times, lines, unit) {
  if (!element) return;
  const uPlot = await load();
  if (!element.isConnected) return;
  const theme = color("--ink") + lines.map((line) => line.name).join();
  const data = [times, ...lines.map((line) => line.values)];
  const known = charts.get(element);
  if (known && known.theme === theme) {
    known.plot.setData(data);
    return;
  }
  known?.plot.destroy();
  known?.watch.disconnect();
  const say = unit === "ms" ? span : rate;
  // Marks are at even distances, so none of them may be rounded to another.
  const mark = (tick) => (tick >= (unit === "ms" ? 1000 : 10) ? say(tick) : `${+tick.toFixed(2)}${unit === "ms" ? " ms" : "/s"}`);
  const axis = { stroke: color("--ink-2"), font: "11px system-ui", ticks: { show: false }, grid: { stroke: color("--line"), width: 1 } };
  const plot = new uPlot(
    {
      width: element.clientWidth,
      height: HEIGHT,
      padding: [10, 22, 0, 0],
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      legend: { live: true },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high ?? 0, unit === "ms" ? 10 : 1) * 1.1] } },
      axes: [
        {
          ...axis,
          grid: { show: false },
          space: 80,
          size: 30,
          values: (plot, ticks) => ticks.map((at) => axisTime(at * 1000, plot.scales.x.max - plot.scales.x.min)),
        },
        { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => (tick === 0 ? "0" : mark(tick))) },
      ],
      series: [
        {
          label: "",
          // The times are the plot's own: it outlives those that it was made with.
          value: ({ data: [times] }, at) => {
            if (times.length < 2) return "now";
            const say = times.at(-1) - times[0] > 86400 ? date : time;
            if (at !== null) return say(at * 1000);
            const end = times[newest(times) + 1];
            return end - times[newest(times)] > NOW_S ? `until ${say(end * 1000)}` : "now";
          },
        },
        ...lines.map((line) => ({
          label: line.name,
          stroke: color(line.color),
          width: 1.75,
          spanGaps: line.spanGaps,
          points: { show: true, size: 5, filter: (plot, series) => alone(plot.data[series]) },
          dash: line.dash,
          fill: line.fill && `color-mix(in srgb, ${color(line.color)} 10%, transparent)`,
          value: (plot, value, series, at) => {
            const shown = at === null ? plot.data[series][newest(plot.data[0])] : value;
            return (shown ?? null) === null ? "–" : say(shown);
          },
        })),
      ],
    },
    data,
    element,
  );
  const watch = new ResizeObserver(() => element.clientWidth && plot.setSize({ width: element.clientWidth, height: HEIGHT }));
  watch.observe(element);
  charts.set(element, { plot, theme, watch });
}

export const RANGES = [
  ["5 min", 300_000],
  ["15 min", 900_000],
  ["1 h", 3_600_000],
  ["4 h", 14_400_000],
  ["1 d", 86_400_000],
  ["7 d", 604_800_000],
];
const CHOSEN = "roundtrip-range";
export const chosenRange = () => Number(localStorage.getItem(CHOSEN)) || RANGES[1][1];

export function ranges(changed) {
  const choose = (ms) => {
    localStorage.setItem(CHOSEN, ms);
    changed();
  };
  return h(
    "div",
    { class: "segments", role: "group", "aria-label": "How far back" },
    RANGES.map(([name, ms]) =>
      h("button", { type: "button", "aria-pressed": String(ms === chosenRange()), onclick: () => choose(ms) }, name),
    ),
  );
}

/** Points in one line, at the most. */
const POINTS = 180;

/** Columns with fewer entries, each of several: counts added up, waits at their worst or in the middle. Pure. */
export function fewer(history, most = POINTS) {
  const size = Math.ceil(history.admitted.length / most);
  const groups = (values) => Array.from({ length: Math.ceil(values.length / size) }, (_, n) => values.slice(n * size, (n + 1) * size));
  const sums = (values) => groups(values).map((group) => group.reduce((sum, value) => sum + value, 0));
  const known = (group) => group.filter((value) => value !== null).sort((a, b) => a - b);
  return {
    seconds: groups(history.admitted).map((group) => (group.length * history.step_ms) / 1000),
    times: groups(history.admitted).map((_, n) => (history.from_ms + n * size * history.step_ms) / 1000),
    admitted: sums(history.admitted),
    settled: sums(history.settled),
    failed: sums(history.failed.map((failed, n) => failed + history.died[n])),
    half_ms: groups(history.half_ms).map((group) => {
      const all = known(group);
      return all.length ? all[Math.floor(all.length / 2)] : null;
    }),
    most_ms: groups(history.most_ms).map((group) => known(group).at(-1) ?? null),
  };
}

/** The two charts that a history makes: how many, and how long. */
export function drawHistory(root, history) {
  const { times, seconds, ...columns } = fewer(history);
  const since = (history.since_ms ?? history.now_ms) / 1000;
  // What happened before the first entry is not known, and the newest length of time is not over.
  const per = (values) => values.map((value, n) => (times[n] + seconds[n] < since || n === values.length - 1 ? null : value / seconds[n]));
  return Promise.all([
    draw(
      root.querySelector('[data-chart="throughput"]'),
      times,
      [
        { name: "came in", color: "--ink-2", dash: [4, 3], values: per(columns.admitted) },
        { name: "settled", color: "--accent", fill: true, values: per(columns.settled) },
        { name: "failed", color: "--bad", values: per(columns.failed) },
      ],
      "rate",
    ),
    draw(
      root.querySelector('[data-chart="latency"]'),
      times,
      [
        { name: "half within", color: "--accent", spanGaps: true, fill: true, values: columns.half_ms },
        { name: "99 of 100 within", color: "--ink-2", spanGaps: true, dash: [4, 3], values: columns.most_ms },
      ],
      "ms",
    ),
  ]);
}
