// The simulated clients: their statistics and controls, and the worker that can be killed.

import { post } from "./server.js";
import { Timeline } from "./timeline.js";

const $ = (id) => document.getElementById(id);

const SIDES = { batched: "digits", single: "one-by-one" };
const SETTINGS = { clients: "clients", "max-batch-size": "max_batch_size", wait: "wait_ms" };
const SHOWN = [
  ["rate", "answers/s"],
  ["mean_batch", "mean batch"],
  ["p50_s", "half within"],
  ["p99_s", "99% within"],
];
const REASONS = {
  full: "it was full",
  timer: "its oldest request had waited long enough",
  regather: "the callers of the batch before had come back",
};
const SPOKEN_MS = 2000; // Interval between updates of the descriptions for screen readers.
const CALM_MS = 1000; // Interval between drawings for viewers who prefer reduced motion.
const STALE_MS = 1000; // For how long frames with older settings may arrive.
const FIGURES_MS = 500; // Interval between updates of the figures, slow enough to read.

const round = (value) => (value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en"));
const time = (seconds) =>
  seconds === null ? "–" : seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;

export class Crowd {
  paused = false;
  #timelines = {};
  #figures = {};
  #frame = null;
  #settings = null;
  #wanted = null; // Settings that were not sent to the server yet.
  #telling = false;
  #toldAt = -Infinity;
  #saidAt = -Infinity;
  #shownAt = -Infinity;
  #died = null; // When the worker died, on the server's clock.
  #deaths = null; // How often it had died at the last look, which was at #lookedAt.
  #lookedAt = null;
  #backAfter = null;

  constructor() {
    for (const side of Object.keys(SIDES)) {
      const canvas = document.querySelector(`#${side} canvas`);
      this.#timelines[side] = new Timeline(canvas, { plain: side === "single" });
      this.#figures[side] = figuresIn(document.querySelector(`#${side} dl`));
    }
    for (const id of Object.keys(SETTINGS)) {
      $(id).addEventListener("input", () => this.#change());
    }
    $("controls").addEventListener("submit", (event) => event.preventDefault());
    $("kill").addEventListener("click", () => this.#kill());
    document.addEventListener("drawn", ({ detail }) => this.#timelines.batched.mark(detail.id));
    const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
    let drawnAt = -Infinity;
    const draw = (now) => {
      if (!this.paused && now - drawnAt >= (calm.matches ? CALM_MS : 0)) {
        drawnAt = now;
        for (const timeline of Object.values(this.#timelines)) {
          timeline.draw();
        }
      }
      requestAnimationFrame(draw);
    };
    requestAnimationFrame(draw);
  }

  disown() {
    for (const timeline of Object.values(this.#timelines)) {
      timeline.disown();
    }
  }

  /** Shows a frame; the first one of a connection resets everything. */
  take(frame, isFirst) {
    this.#frame = frame;
    if (isFirst) {
      this.#died = this.#backAfter = null;
      for (const timeline of Object.values(this.#timelines)) {
        timeline.reset();
      }
    }
    const isStale = this.#telling || performance.now() - this.#toldAt < STALE_MS;
    if (this.#wanted === null && !isStale) {
      this.#settle(frame.settings);
    }
    this.#watchWorker(frame);
    for (const [side, name] of Object.entries(SIDES)) {
      const { queued, running, state } = frame.sides[name];
      const room = frame.settings.max_batch_size; // The same scale for both.
      this.#timelines[side].take(frame.now, frame.batches[name], { queued, running, room, state });
    }
    const now = performance.now();
    if (!this.paused && now - this.#shownAt > FIGURES_MS) {
      this.#shownAt = now;
      this.#show(frame);
    }
    if (now - this.#saidAt > SPOKEN_MS) {
      this.#saidAt = now;
      this.#describe(frame);
    }
  }

  /** Freezes the drawing while the server is unreachable. */
  stand() {
    for (const timeline of Object.values(this.#timelines)) {
      timeline.stand();
    }
    $("kill").disabled = true;
  }

  #show({ sides, slow_motion: slowMotion }) {
    const { batched, single } = { batched: sides[SIDES.batched], single: sides[SIDES.single] };
    for (const side of Object.keys(SIDES)) {
      const figures = sides[SIDES[side]].figures;
      this.#figures[side].rate.textContent = round(figures.rate);
      this.#figures[side].p50_s.textContent = time(figures.p50_s);
      this.#figures[side].p99_s.textContent = time(figures.p99_s);
      this.#figures[side].mean_batch.textContent = figures.mean_batch.toFixed(1);
    }
    const ratio = batched.figures.rate / single.figures.rate;
    $("ratio").textContent = Number.isFinite(ratio) ? `${round(ratio)} times the answers` : "";
    $("slow-motion").textContent = slowMotion;
    const { asked, answered, failed, given_up: left, open } = batched.figures;
    const n = (value) => value.toLocaleString("en");
    $("account").textContent =
      `${n(asked)} asked = ${n(answered)} answered + ${n(failed)} failed + ${n(left)} left + ${n(open)} waiting`;
  }

  #describe({ sides }) {
    for (const side of Object.keys(SIDES)) {
      const { figures, queued } = sides[SIDES[side]];
      const { canvas, last } = this.#timelines[side];
      const run = last ? `, the last run for ${last.size}, dispatched because ${REASONS[last.reason] ?? last.reason}` : "";
      canvas.setAttribute(
        "aria-label",
        `Runs of the model, ${side === "batched" ? "in batches" : "one request at a time"}: ` +
          `${round(figures.rate)} answers a second, ${queued} waiting${run}`,
      );
    }
  }

  // ---- settings ----

  #settle(settings) {
    this.#settings = settings;
    for (const [id, name] of Object.entries(SETTINGS)) {
      $(id).value = settings[name];
    }
    this.#label(settings);
  }

  #label(settings) {
    $("crowd-size").textContent = settings.clients;
    $("clients-value").textContent = settings.clients;
    $("max-batch-size-value").textContent = settings.max_batch_size;
    $("wait-value").textContent = settings.wait_ms / 1000;
  }

  /** Sends the sliders' values to the server: one change at a time, the latest one last. */
  async #change() {
    this.#wanted = Object.fromEntries(
      Object.entries(SETTINGS).map(([id, name]) => [name, Number($(id).value)]),
    );
    this.#label(this.#wanted);
    if (this.#telling) {
      return;
    }
    this.#telling = true;
    try {
      while (this.#wanted !== null) {
        const wanted = this.#wanted;
        this.#wanted = null;
        await post("/show/settings", wanted);
      }
      $("show-error").textContent = "";
    } catch (error) {
      $("show-error").textContent = error.message;
    } finally {
      this.#telling = false;
      this.#toldAt = performance.now();
    }
  }

  // ---- the worker ----

  async #kill() {
    $("kill").disabled = true;
    try {
      await post("/show/kill", {});
      $("show-error").textContent = "";
    } catch (error) {
      $("show-error").textContent = error.message;
    }
  }

  #watchWorker({ now, sides }) {
    const { state, worker, deaths } = sides[SIDES.batched];
    const isUp = state === "ready";
    if (!isUp && deaths > 0 && this.#died === null) {
      this.#died = now;
    } else if (isUp && this.#deaths !== null && deaths > this.#deaths && this.#died === null) {
      this.#died = this.#lookedAt; // It is back already: the page was too busy to see it down.
    }
    this.#deaths = deaths;
    this.#lookedAt = now;
    if (isUp && this.#died !== null) {
      this.#backAfter = now - this.#died;
      this.#died = null;
    }
    $("kill").disabled = !isUp || worker === null;
    $("worker").dataset.state = isUp ? "ready" : "down";
    const back = this.#backAfter === null ? "" : `, back after ${this.#backAfter.toFixed(1)} s`;
    const text = isUp
      ? `Worker is up: process ${worker ?? "…"}${back}`
      : "The worker was killed. All calls wait for its replacement, which is starting";
    if ($("worker").textContent !== text) {
      $("worker").textContent = text;
    }
  }
}

function figuresIn(list) {
  const values = {};
  for (const [name, label] of SHOWN) {
    const box = document.createElement("div");
    const term = document.createElement("dt");
    term.textContent = label;
    values[name] = document.createElement("dd");
    values[name].dataset.figure = name;
    values[name].textContent = "–";
    box.append(term, values[name]);
    list.append(box);
  }
  return values;
}
