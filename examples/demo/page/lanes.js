// The places of the running batch, and the text in each place, step by step.

import { post } from "./server.js";

const $ = (id) => document.getElementById(id);

const PLACES = 8;
const HUES = 6;
const KEPT = 200; // Steps; more than the widest page shows.

export class Lanes {
  paused = false;
  #steps = []; // Each a list of {reader, text}, or null, for each place.
  #readers = new Map(); // By number: {prompt, end, hue}; without a hue before its first step.
  #mine = new Set();
  #lanes = [];
  #number = 0;

  constructor() {
    this.#lanes = Array.from({ length: PLACES }, (_, place) => this.#lane(place));
    $("lanes").append(...this.#lanes.map(({ row }) => row));
    $("join").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#join($("beginning").value);
    });
    window.addEventListener("resize", () => this.#draw());
  }

  /** Forgets the own readers: a new show numbers its readers from 1. */
  disown() {
    this.#mine.clear();
  }

  take(frame, isFirst) {
    if (isFirst) {
      this.#steps = [];
      this.#readers.clear();
    }
    for (const { reader, prompt, end } of frame.readers) {
      const known = this.#readers.get(reader);
      this.#readers.set(reader, { prompt, end, hue: known?.hue ?? null });
    }
    for (const step of frame.steps) {
      for (const [place, written] of step.entries()) {
        const reader = written && this.#readers.get(written.reader);
        if (reader && reader.hue === null) {
          // A hue that differs from the previous one in this place.
          reader.hue = this.#lanes[place].nextHue++ % HUES;
        }
      }
    }
    this.#steps.push(...frame.steps);
    this.#steps.splice(0, this.#steps.length - KEPT);
    this.#number = frame.step;
    if (!this.paused && (isFirst || frame.steps.length > 0 || frame.readers.length > 0)) {
      this.#forget();
      this.#draw();
    }
  }

  #lane(place) {
    const row = document.createElement("li");
    const number = document.createElement("span");
    number.className = "place";
    number.textContent = place + 1;
    const who = document.createElement("span");
    who.className = "who";
    const steps = document.createElement("span");
    steps.className = "steps";
    const leave = document.createElement("button");
    leave.type = "button";
    leave.textContent = "Leave";
    leave.disabled = true;
    row.append(number, who, steps, leave);
    const lane = { row, who, steps, leave, reader: null, nextHue: place };
    leave.addEventListener("click", () => this.#leave(lane.reader));
    return lane;
  }

  #draw() {
    // Only as many steps as fit, in characters of a fixed width.
    const probe = this.#lanes[0].steps;
    const width = probe.clientWidth / characterWidth(probe);
    const shown = this.#steps.slice(-Math.max(1, Math.floor(width)));
    for (const [place, lane] of this.#lanes.entries()) {
      lane.steps.replaceChildren(...segments(shown.map((step) => step[place])).map((each) => this.#text(each)));
      const written = shown.at(-1)?.[place] ?? null;
      const reader = written && this.#readers.get(written.reader);
      const isThere = Boolean(reader) && reader.end === null;
      lane.reader = isThere ? written.reader : null;
      lane.leave.disabled = !isThere;
      lane.leave.setAttribute("aria-label", isThere ? `Make reader ${written.reader} leave` : `Place ${place + 1} is free`);
      lane.row.classList.toggle("free", !isThere);
      lane.row.classList.toggle("mine", isThere && this.#mine.has(written.reader));
      lane.who.textContent = isThere ? `#${written.reader} ${visibly(reader.prompt)}` : "free";
    }
    const waiting = [...this.#readers]
      .filter(([, { end, hue }]) => end === null && hue === null)
      .map(([number]) => `#${number}${this.#mine.has(number) ? " (you)" : ""}`);
    $("queue").textContent = waiting.length ? `In the queue: ${waiting.join(", ")}` : "The queue is empty.";
    $("step").textContent = `Step ${this.#number.toLocaleString("en")}`;
  }

  #text({ reader, text, width }) {
    const part = document.createElement("span");
    part.className = "part";
    part.style.setProperty("--width", width);
    if (reader === null) {
      part.classList.add("nobody");
      return part;
    }
    const { end = "done", prompt = "", hue = 0 } = this.#readers.get(reader) ?? {};
    part.classList.add(`hue-${hue}`);
    part.classList.toggle("left", end === "left");
    part.classList.toggle("mine", this.#mine.has(reader));
    part.title = `#${reader}: ${prompt}`;
    part.textContent = visibly(text);
    return part;
  }

  #forget() {
    const seen = new Set(this.#steps.flat().map((written) => written?.reader));
    for (const [number, { end }] of this.#readers) {
      if (end !== null && !seen.has(number)) {
        this.#readers.delete(number);
      }
    }
  }

  async #leave(reader) {
    try {
      await post("/show/leave", { reader });
      $("lanes-error").textContent = "";
    } catch (error) {
      $("lanes-error").textContent = error.message;
    }
  }

  async #join(text) {
    try {
      const answer = await post("/show/write", { text });
      this.#mine.add(await answer.json());
      $("lanes-error").textContent = "";
      if (!this.paused) {
        this.#draw();
      }
    } catch (error) {
      $("lanes-error").textContent = error.message;
    }
  }
}

/** Joins consecutive output of one reader: {reader, text, width in characters}. */
function segments(outputs) {
  const found = [];
  for (const written of outputs) {
    const reader = written?.reader ?? null;
    let last = found.at(-1);
    if (last === undefined || last.reader !== reader) {
      last = { reader, text: "", width: 0 };
      found.push(last);
    }
    last.text += written?.text || " ";
    last.width += 1;
  }
  return found;
}

/** Returns a text on one line, with newlines made visible. */
function visibly(text) {
  return text.replaceAll("\n", "↵");
}

const widths = new WeakMap();

function characterWidth(element) {
  if (!widths.has(element)) {
    const probe = document.createElement("span");
    probe.className = "part";
    probe.style.setProperty("--width", 100);
    element.append(probe);
    widths.set(element, probe.getBoundingClientRect().width / 100 || 8);
    probe.remove();
  }
  return widths.get(element);
}
