// The charts of the last three minutes, drawn by uPlot.

import { REASONS } from "./timeline.js";
import { count, seconds } from "./text.js";

const SHOWN_S = 180;
const FEWEST_S = 60;
const GAP_S = 3; // Without samples for so long, lines are interrupted.
export const MOST_LINES = 7;
const HEIGHT = 170;

const CHARTS = [
  { title: "Requests finished a second", value: count, lines: throughput },
  { title: "Latency, from arrival to result", value: seconds, lines: latency },
  { title: "Requests in a batch, mean", value: count, lines: sizes },
  { title: "Batches a second, by dispatch reason", value: count, lines: reasons, stacked: true },
  { title: "Requests that wait", value: count, lines: queues },
  { title: "Requests without a result, a second", value: count, lines: losses },
];

export class Charts {
  #samples = [];
  #charts = [];
  #colors;
  #chosen = "";

  constructor(place, colors) {
    this.#colors = colors;
    this.#charts = CHARTS.map((spec) => {
      const figure = document.createElement("figure");
      figure.className = "card chart";
      const title = document.createElement("figcaption");
      title.textContent = spec.title;
      const plot = document.createElement("div");
      plot.className = "plot";
      const legend = document.createElement("ul");
      legend.className = "legend small";
      figure.append(title, plot, legend);
      place.append(figure);
      return { spec, plot, legend, chart: null, key: "" };
    });
    new ResizeObserver(() => this.#charts.forEach(({ chart, plot }) => (
      chart?.setSize({ width: plot.clientWidth, height: HEIGHT })
    ))).observe(place);
  }

  reset() {
    this.#samples = [];
  }

  take(samples) {
    this.#samples.push(...samples);
    this.#samples.splice(0, this.#samples.length - SHOWN_S);
  }

  choose(batcher) {
    this.#chosen = batcher;
  }

  recolor(colors) {
    this.#colors = colors;
    this.#charts.forEach((each) => {
      each.key = ""; // to be rebuilt
    });
  }

  draw() {
    const at = this.#samples.map((sample) => sample.at);
    const last = at.at(-1) ?? 0;
    const shown = Math.min(SHOWN_S, Math.max(FEWEST_S, Math.ceil((last - at[0]) / FEWEST_S) * FEWEST_S || 0));
    for (const each of this.#charts) {
      const lines = each.spec.lines(this.#samples, this.#chosen, this.#colors);
      const key = JSON.stringify(lines.map(({ name }) => name));
      if (key !== each.key) {
        each.key = key;
        each.chart?.destroy();
        each.chart = this.#chart(each, lines);
        each.legend.replaceChildren(...lines.map(({ name, color }) => legendItem(name, color)));
      }
      const values = lines.map(({ values: own }) => own);
      const columns = withGaps([at, ...(each.spec.stacked ? stacked(values) : values)]);
      each.chart.setData(columns, false);
      each.chart.batch(() => {
        each.chart.setScale("x", { min: last - shown, max: last });
        each.chart.setScale("y", { min: 0, max: top(columns, last) });
      });
    }
  }

  #chart({ spec, plot }, lines) {
    const { soft, line } = this.#colors;
    const font = "11px system-ui, sans-serif";
    const axis = { stroke: soft, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
    const options = {
      width: plot.clientWidth,
      height: HEIGHT,
      padding: [8, 16, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { time: false, auto: false }, y: { auto: false } },
      axes: [
        {
          ...axis,
          size: 24,
          splits: (_, __, min, max) => {
            const step = max - min > FEWEST_S ? 60 : 20;
            return [3, 2, 1, 0].map((steps) => max - steps * step).filter((at) => at >= min);
          },
          values: (chart, splits) => splits.map((at) => ago(chart.scales.x.max - at)),
        },
        { ...axis, size: 52, space: 36, values: (_, splits) => splits.map((value) => spec.value(value)) },
      ],
      series: [
        {},
        ...lines.map(({ name, color, isThin }) => ({
          label: name,
          stroke: color,
          width: isThin ? 1 : 1.75,
          dash: isThin ? [4, 4] : undefined,
          fill: spec.stacked ? color : undefined,
          points: { show: false },
        })),
      ],
      // A stacked line is filled down to the next one.
      bands: spec.stacked ? lines.slice(1).map((_, index) => ({ series: [index + 1, index + 2] })) : [],
      plugins: [readout(spec, lines)],
    };
    return new uPlot(options, [[], ...lines.map(() => [])], plot);
  }
}

/** Shows the values at the pointer in the legend. */
function readout(spec, lines) {
  return {
    hooks: {
      setCursor: (chart) => {
        const items = chart.root.closest(".chart").querySelectorAll(".legend li b");
        lines.forEach((_, index) => {
          const column = chart.data[index + 1];
          const here = chart.cursor.idx;
          let value = here == null ? null : column?.[here];
          if (value != null && spec.stacked) {
            value -= chart.data[index + 2]?.[here] ?? 0;
          }
          if (items[index]) {
            items[index].textContent = value == null ? "" : spec.value(value);
          }
        });
      },
    },
  };
}

function legendItem(name, color) {
  const item = document.createElement("li");
  const key = document.createElement("i");
  key.style.background = color;
  const label = document.createElement("span");
  label.textContent = name;
  item.append(key, label, document.createElement("b"));
  return item;
}

function ago(passed) {
  if (passed < 1) {
    return "now";
  }
  return passed < 59 ? `−${Math.round(passed)} s` : `−${Math.round(passed / 60)} min`;
}

/** Inserts an empty moment where samples are missing. */
function withGaps(columns) {
  const at = columns[0];
  const made = columns.map(() => []);
  at.forEach((moment, index) => {
    if (index > 0 && moment - at[index - 1] > GAP_S) {
      made.forEach((column, which) => column.push(which ? null : at[index - 1] + 1));
    }
    made.forEach((column, which) => column.push(columns[which][index]));
  });
  return made;
}

/** The sum of each column and those after it, so that the first is the outline of all. */
function stacked(columns) {
  const sums = [];
  for (let which = columns.length - 1; which >= 0; which -= 1) {
    sums.unshift(columns[which].map((value, index) => (value ?? 0) + (sums[0]?.[index] ?? 0)));
  }
  return sums;
}

function top([at, ...columns], last) {
  let most = 0;
  columns.forEach((column) => column.forEach((value, index) => {
    if (value > most && at[index] >= last - SHOWN_S) {
      most = value;
    }
  }));
  return most > 0 ? most * 1.12 : 1;
}

/** The batchers that finished most in the time shown, in the server's order. */
function busiest(samples) {
  const names = Object.keys(samples.at(-1)?.batchers ?? {});
  const finished = (name) => samples.reduce((sum, { batchers }) => sum + (batchers[name]?.finished ?? 0), 0);
  const ranked = names.map((name) => [name, finished(name)]).sort(([, one], [, other]) => other - one);
  const chosen = new Set(ranked.slice(0, MOST_LINES).map(([name]) => name));
  return names.filter((name) => chosen.has(name));
}

function byBatcher(samples, colors, value) {
  return busiest(samples).map((name, index) => ({
    name,
    color: colors.series[index],
    values: samples.map(({ batchers }) => (batchers[name] ? value(batchers[name]) : null)),
  }));
}

function of(samples, chosen) {
  return samples.map((sample) => (chosen ? sample.batchers[chosen] : sample.all) ?? {});
}

function throughput(samples, chosen, colors) {
  if (!chosen) {
    return byBatcher(samples, colors, (one) => one.finished);
  }
  return [{ name: chosen, color: colors.series[0], values: of(samples, chosen).map((one) => one.finished ?? null) }];
}

function latency(samples, chosen, colors) {
  return ["p50", "p95", "p99"].map((name, index) => ({
    name,
    color: colors.percentiles[index],
    values: of(samples, chosen).map((one) => one[name] ?? null),
  }));
}

function sizes(samples, chosen, colors) {
  const size = (one) => (one.batches > 0 ? one.size : null);
  if (!chosen) {
    return byBatcher(samples, colors, size);
  }
  const shown = of(samples, chosen);
  return [
    { name: "mean", color: colors.series[0], values: shown.map(size) },
    { name: "at most", color: colors.soft, isThin: true, values: shown.map((one) => one.limit ?? null) },
  ];
}

function reasons(samples, chosen, colors) {
  const total = (sample, reason) => {
    const shown = chosen ? [sample.batchers[chosen]] : Object.values(sample.batchers);
    return shown.reduce((sum, one) => sum + (one?.reasons[reason] ?? 0), 0);
  };
  return Object.keys(REASONS)
    .map((reason) => ({
      name: reason,
      color: colors.reasons[reason],
      values: samples.map((sample) => total(sample, reason)),
    }))
    .filter(({ values }) => values.some((value) => value > 0));
}

/** The longest queues: of each batcher; by priority level where it has levels. */
function queues(samples, chosen, colors) {
  const names = Object.keys(samples.at(-1)?.batchers ?? {});
  const lines = (chosen ? [chosen] : names).flatMap((name) => {
    const shown = samples.map(({ batchers }) => batchers[name]);
    const levels = [...new Set(shown.flatMap((one) => Object.keys(one?.levels ?? {})))].sort((a, b) => a - b);
    if (levels.length === 0) {
      return [{ name, values: shown.map((one) => one?.queued ?? null) }];
    }
    return levels.map((level) => ({
      name: `${name}, level ${level}`,
      values: shown.map((one) => (one ? one.levels[level] ?? 0 : null)),
    }));
  });
  // Not those of the batchers that finish most, since one that is stuck finishes nothing.
  const ranked = lines.map((line) => [line, Math.max(...line.values)]).sort(([, one], [, other]) => other - one);
  const shown = new Set(ranked.slice(0, MOST_LINES).map(([line]) => line));
  return lines.filter((line) => shown.has(line)).map((line, index) => ({ ...line, color: colors.series[index] }));
}

function losses(samples, chosen, colors) {
  const names = { failed: colors.failed, refused: colors.reasons.timer, left: colors.left };
  return Object.entries(names).map(([name, color]) => ({
    name: name === "left" ? "left or late" : name,
    color,
    values: of(samples, chosen).map((one) => one[name] ?? null),
  }));
}
