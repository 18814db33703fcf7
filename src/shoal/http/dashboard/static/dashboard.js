// The page: it takes the messages of the feed, and shows them.

import { Charts, MOST_LINES } from "./charts.js";
import { messages } from "./feed.js";
import { showBackends, showEndpoints, showFailures, showFigures } from "./tables.js";
import { count, element, mean, seconds } from "./text.js";
import { colorsOf, DELAY_S, Lane, REASONS, stepOf } from "./timeline.js";
import { watch } from "./watch.js";

const $ = (id) => document.getElementById(id);

const WINDOWS = [1, 3, 10, 60]; // Seconds.
const QUIET_S = 60; // A batcher without a batch for so long is a line of text.
const MANY = 12; // With more batchers, each has less space.
const MOST_BARS = 45; // At first, the most bars of a lane: more could not be distinguished.

class Page {
  #lanes = new Map();
  #charts = new Charts($("charts"), allColors());
  #colors = allColors();
  #run = null;
  #offset = null; // The server's clock minus this page's clock, in seconds.
  #stands = null; // The moment at which the drawing was paused.
  #seconds = null;
  #wasChosen = false;
  #latest = null;
  #explained = new Set();

  constructor() {
    $("windows").append(...WINDOWS.map((each) => {
      const button = element("button", `${each} s`);
      button.type = "button";
      button.addEventListener("click", () => {
        this.#wasChosen = true;
        this.#show(each);
      });
      return button;
    }));
    this.#show(10);
    $("pause").addEventListener("click", () => this.#pause());
    $("chosen").addEventListener("change", () => {
      this.#charts.choose($("chosen").value);
      this.#charts.draw();
    });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.#colors = allColors();
      this.#charts.recolor(this.#colors);
      this.#charts.draw();
    });
    this.#legend("full");
    this.#legend("timer");
    this.#charts.draw();
    const draw = () => {
      this.#draw();
      requestAnimationFrame(draw);
    };
    if (!window.matchMedia("(prefers-reduced-motion: reduce)").matches) {
      requestAnimationFrame(draw);
    }
  }

  take(message) {
    if (message.run !== this.#run) {
      this.#reset(message.run);
    }
    const offset = message.now - performance.now() / 1000;
    // A late message says less about the clock than a quick one.
    this.#offset = this.#offset === null || offset > this.#offset
      ? offset
      : this.#offset + 0.05 * (offset - this.#offset);
    this.#takeLanes(message.lanes);
    if (message.samples.length > 0) {
      this.#latest = message.samples.at(-1);
      this.#charts.take(message.samples);
      this.#charts.draw();
      showFigures($("figures"), this.#latest);
      this.#choose();
    }
    if (message.state) {
      showBackends($("backends"), message.state.backends, this.#latest?.batchers ?? {});
      showEndpoints($("endpoints"), message.state.endpoints);
      showFailures($("failures"), message.state.failures, message.now);
      $("hidden").hidden = message.state.hidden === 0;
      $("hidden").textContent = `And ${message.state.hidden} more, which are not shown.`;
      this.#describe();
    }
    this.#draw();
  }

  #reset(run) {
    this.#run = run;
    this.#offset = null;
    this.#stands = null;
    this.#latest = null;
    $("pause").setAttribute("aria-pressed", "false");
    $("pause").textContent = "Pause";
    for (const { row } of this.#lanes.values()) {
      row.remove();
    }
    this.#lanes.clear();
    this.#charts.reset();
  }

  #takeLanes(lanes) {
    const there = new Set(lanes.map(({ name }) => name));
    for (const [name, { row }] of this.#lanes) {
      if (!there.has(name)) {
        row.remove();
        this.#lanes.delete(name);
      }
    }
    for (const one of lanes) {
      const known = this.#lanes.get(one.name) ?? this.#newLane(one.name);
      known.lane.take(one);
      known.canvas.style.height = `${known.lane.height}px`;
      for (const [, , reason] of one.open ? [] : one.rows) {
        this.#legend(reason);
      }
      if (one.open) {
        this.#legend("open");
      }
    }
    $("lanes-empty").hidden = lanes.length > 0;
    $("lanes").classList.toggle("many", lanes.length > MANY);
    const chosen = $("chosen");
    const names = ["", ...there];
    if (JSON.stringify([...chosen.options].map(({ value }) => value)) !== JSON.stringify(names)) {
      const before = chosen.value;
      const all = there.size > MOST_LINES ? `all batchers (lines: the ${MOST_LINES} busiest)` : "all batchers";
      chosen.replaceChildren(...names.map((name) => new Option(name || all, name)));
      chosen.value = there.has(before) ? before : "";
      this.#charts.choose(chosen.value);
    }
  }

  #newLane(name) {
    const canvas = element("canvas");
    canvas.setAttribute("role", "img");
    const lane = new Lane(canvas);
    const about = { fill: element("span.note"), times: element("span.note"), why: element("span.split.thin"), most: element("span.note") };
    const row = element(
      "div.lane",
      element("div.about", element("b", name), about.fill, about.times, about.why, about.most),
      element("div.track", canvas),
    );
    $("lanes").append(row);
    const known = { lane, row, canvas, about, name };
    this.#lanes.set(name, known);
    canvas.addEventListener("pointermove", (event) => this.#tip(event, known));
    canvas.addEventListener("pointerdown", (event) => this.#tip(event, known));
    canvas.addEventListener("pointerleave", () => {
      $("tip").hidden = true;
    });
    return known;
  }

  /** Says beside each lane what the bars of the time shown have in common. */
  #describe() {
    for (const { lane, about, canvas, name, row } of this.#lanes.values()) {
      const isQuiet = lane.isQuiet(this.#until() - QUIET_S);
      row.classList.toggle("quiet", isQuiet);
      if (isQuiet) {
        about.fill.textContent = "idle";
        continue;
      }
      const sum = lane.summary(this.#until() - this.#seconds);
      const sample = this.#latest?.batchers[name];
      const waiting = sample?.queued ? ` · ${count(sample.queued)} waiting` : "";
      if (lane.isOpen) {
        about.fill.textContent = `${sum.running} of ${lane.limit} places taken${waiting}`;
        about.times.textContent = sum.count ? `stayed ${seconds(sum.ran)} · waited ${seconds(sum.waited)}` : "";
        about.most.textContent = `${REASONS.open}; ${sum.count} left`;
      } else {
        about.fill.textContent = sum.count ? `${mean(sum.size)} of ${lane.limit} requests${waiting}` : `up to ${lane.limit} requests${waiting}`;
        about.times.textContent = sum.count ? `ran ${seconds(sum.ran)} · waited ${seconds(sum.waited)}` : "no batch in this time";
        const most = Object.entries(sum.reasons).sort(([, one], [, other]) => other - one);
        about.why.replaceChildren(...most.map(([reason, n]) => {
          const part = element("i");
          part.style.flexGrow = n;
          part.style.background = this.#colors.reasons[reason];
          return part;
        }));
        about.most.textContent = most.length ? `${Math.round((100 * most[0][1]) / sum.count)} %: ${REASONS[most[0][0]]}` : "";
      }
      canvas.setAttribute("aria-label", `${name}: ${about.fill.textContent}; ${about.times.textContent}; ${about.most.textContent}`);
    }
  }

  #choose() {
    if (!this.#wasChosen && this.#latest) {
      this.#wasChosen = true;
      const most = Math.max(0, ...Object.values(this.#latest.batchers).map(({ batches }) => batches));
      this.#show(WINDOWS.slice(0, 3).findLast((each) => each * most <= MOST_BARS) ?? WINDOWS[0]);
    }
  }

  #show(shown) {
    this.#seconds = shown;
    const lines = Math.ceil(shown / stepOf(shown));
    $("axis").replaceChildren(...Array.from({ length: lines }, (_, index) => {
      const ago = index * stepOf(shown);
      const label = element("span", ago === 0 ? "now" : `−${Number(ago.toFixed(1))} s`);
      label.style.right = `${(100 * ago) / shown}%`;
      return label;
    }));
    [...$("windows").children].forEach((button, index) => {
      button.setAttribute("aria-pressed", String(WINDOWS[index] === shown));
    });
    this.#describe();
  }

  #pause() {
    this.#stands = this.#stands === null ? this.#until() : null;
    $("pause").setAttribute("aria-pressed", String(this.#stands !== null));
    $("pause").textContent = this.#stands === null ? "Pause" : "Go on";
  }

  #until() {
    return this.#stands ?? performance.now() / 1000 + (this.#offset ?? 0) - DELAY_S;
  }

  #draw() {
    if (this.#offset === null) {
      return;
    }
    const until = this.#until();
    for (const { lane } of this.#lanes.values()) {
      lane.draw(until, this.#seconds, this.#colors);
    }
  }

  /** Adds a reason to the legend, if it is not there. */
  #legend(reason) {
    if (this.#explained.has(reason) || !(reason in REASONS)) {
      return;
    }
    this.#explained.add(reason);
    const shown = Object.keys(REASONS).filter((each) => this.#explained.has(each));
    const key = (name, text, kind = "li") => {
      const mark = element("i");
      mark.style.background = `var(--${name})`;
      return element(kind, mark, text);
    };
    $("legend").replaceChildren(
      element("li", "Dispatched because"),
      ...shown.map((each) => key(each, REASONS[each])),
      key("failed", "with a failed request", "li.apart"),
      key("empty", "unused room"),
    );
  }

  #tip(event, { lane, name }) {
    const box = lane.canvas.getBoundingClientRect();
    const bar = lane.at(event.clientX - box.left, event.clientY - box.top, this.#until(), this.#seconds);
    const tip = $("tip");
    tip.hidden = bar === undefined;
    if (bar === undefined) {
      return;
    }
    const ran = bar.ended === null ? "still running" : `ran ${seconds(bar.ended - bar.began)}`;
    tip.replaceChildren(...(lane.isOpen
      ? [
          element("b", `${name}, place ${bar.place + 1}`),
          element("span", `request ${bar.id || "without an id"}`),
          element("span", `waited ${seconds(bar.waited)}, ${bar.ended === null ? "still there" : `stayed ${seconds(bar.ended - bar.began)}, ${bar.outcome}`}`),
        ]
      : [
          element("b", `${name}, batch ${bar.id}`),
          element("span", `${bar.size} of ${bar.most} requests`),
          element("span", `waited ${seconds(bar.waited)}, ${ran}`),
          element("span", `dispatched because ${REASONS[bar.reason] ?? bar.reason}`),
          ...(bar.failed ? [element("span.bad", `${bar.failed} failed: ${bar.error}`)] : []),
          ...(bar.left ? [element("span", `${bar.left} left or late`)] : []),
        ]));
    const wide = tip.offsetWidth;
    tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, document.documentElement.clientWidth - wide - 8)) + window.scrollX}px`;
    tip.style.top = `${event.clientY + 18 + window.scrollY}px`;
  }
}

function allColors() {
  const colors = colorsOf(document.documentElement);
  const style = getComputedStyle(document.documentElement);
  colors.percentiles = [0, 1, 2].map((index) => style.getPropertyValue(`--percentile-${index}`).trim());
  return colors;
}

const page = new Page();
watch(
  messages,
  (message) => page.take(message),
  (state, text) => {
    if ($("live").textContent !== text) {
      $("live").dataset.state = state;
      $("live").textContent = text;
    }
  },
);
