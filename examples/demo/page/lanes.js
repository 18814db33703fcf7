// The places of the running batch: which text is in which, step by step.

import { post } from "./server.js";

const $ = (id) => document.getElementById(id);

const PLACES = 8;
const HUES = 6;
const KEPT = 200; // Steps, more than the widest page shows.

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

  /** Another show numbers its readers from the beginning. */
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
      for (const [place, cell] of step.entries()) {
        const reader = cell && this.#readers.get(cell.reader);
        if (reader && reader.hue === null) {
          // Another one than the last in this place had.
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
    // What fits, by the width of a character of a fixed width.
    const probe = this.#lanes[0].steps;
    const width = probe.clientWidth / characterWidth(probe);
    const shown = this.#steps.slice(-Math.max(1, Math.floor(width)));
    for (const [place, lane] of this.#lanes.entries()) {
      lane.steps.replaceChildren(...segments(shown.map((step) => step[place])).map((each) => this.#text(each)));
      const cell = shown.at(-1)?.[place] ?? null;
      const reader = cell && this.#readers.get(cell.reader);
      const isThere = Boolean(reader) && reader.end === null;
      lane.reader = isThere ? cell.reader : null;
      lane.leave.disabled = !isThere;
      lane.leave.setAttribute("aria-label", isThere ? `Reader ${cell.reader} leaves` : `Place ${place + 1} is free`);
      lane.row.classList.toggle("free", !isThere);
      lane.row.classList.toggle("mine", isThere && this.#mine.has(cell.reader));
      lane.who.textContent = isThere ? `#${cell.reader} ${visibly(reader.prompt)}` : "free";
    }
    const waiting = [...this.#readers]
      .filter(([, { end, hue }]) => end === null && hue === null)
      .map(([number]) => `#${number}${this.#mine.has(number) ? " (you)" : ""}`);
    $("line").textContent = waiting.length ? `In line for a place: ${waiting.join(", ")}` : "Nobody is in line.";
    $("step").textContent = `Step ${this.#number.toLocaleString("en")}`;
  }

  #text({ reader, text, cells }) {
    const part = document.createElement("span");
    part.className = "part";
    part.style.setProperty("--cells", cells);
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
    const seen = new Set(this.#steps.flat().map((cell) => cell?.reader));
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

/** The runs of cells of one reader: {reader, text, cells}. */
function segments(cells) {
  const found = [];
  for (const cell of cells) {
    const reader = cell?.reader ?? null;
    let last = found.at(-1);
    if (last === undefined || last.reader !== reader) {
      last = { reader, text: "", cells: 0 };
      found.push(last);
    }
    last.text += cell?.text || " ";
    last.cells += 1;
  }
  return found;
}

/** A text on one line, each character of it one cell wide. */
function visibly(text) {
  return text.replaceAll("\n", "↵");
}

const widths = new WeakMap();

function characterWidth(element) {
  if (!widths.has(element)) {
    const probe = document.createElement("span");
    probe.className = "part";
    probe.style.setProperty("--cells", 100);
    element.append(probe);
    widths.set(element, probe.getBoundingClientRect().width / 100 || 8);
    probe.remove();
  }
  return widths.get(element);
}
