// Drawing a digit, with the input of the model and its prediction.

import { post } from "./server.js";
import { SAMPLES } from "./samples.js";

const SIDE = 8;
const BLOCK = 4; // The model's data counts the ink in 4 x 4 blocks of a 32 x 32 bitmap.
const PEN = 4.6; // In pixels of that bitmap, independent of the size of the drawing.
const WIDEST = 20; // The data's digits fill the bitmap's height, and at most this much of its width.

const $ = (id) => document.getElementById(id);
const pad = $("pad");
const paint = pad.getContext("2d");

let strokes = []; // Each is a list of [x, y] between 0 and 1.
let drawing = null; // The id of the pointer that draws.

// ---- drawing ----

function pointOf(event) {
  const box = pad.getBoundingClientRect();
  return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
}

function trace(context, width, place) {
  context.lineWidth = width;
  context.lineCap = "round";
  context.lineJoin = "round";
  for (const stroke of strokes) {
    context.beginPath();
    context.moveTo(...place(stroke[0]));
    // A stroke of one point is a dot: a line of length 0 with a round cap.
    for (const point of stroke.length > 1 ? stroke.slice(1) : stroke) {
      context.lineTo(...place(point));
    }
    context.stroke();
  }
}

function redraw() {
  const sharp = window.devicePixelRatio || 1;
  const size = Math.round(pad.clientWidth * sharp);
  pad.width = size;
  pad.height = size;
  paint.strokeStyle = getComputedStyle(pad).color;
  trace(paint, size * 0.075, ([x, y]) => [x * size, y * size]);
  $("pad-hint").hidden = strokes.length > 0;
}

pad.addEventListener("pointerdown", (event) => {
  if (drawing !== null) {
    return;
  }
  event.preventDefault();
  drawing = event.pointerId;
  pad.setPointerCapture(drawing);
  strokes.push([pointOf(event)]);
  changed();
});

pad.addEventListener("pointermove", (event) => {
  if (event.pointerId === drawing) {
    strokes.at(-1).push(pointOf(event));
    changed();
  }
});

for (const end of ["pointerup", "pointercancel"]) {
  pad.addEventListener(end, (event) => {
    if (event.pointerId === drawing) {
      drawing = null;
    }
  });
}

// ---- input of the model ----

/** Converts the drawing to the form of the training data: full height, centred, one pen width. */
function image() {
  const side = SIDE * BLOCK;
  const points = strokes.flat();
  const [left, right] = range(points.map(([x]) => x));
  const [top, bottom] = range(points.map(([, y]) => y));
  // A dot must not be enlarged to fill the bitmap.
  const scale = (side - PEN) / Math.max(right - left, bottom - top, 0.15);
  const squeeze = Math.min(scale, (WIDEST - PEN) / Math.max(right - left, 0.01));
  const bitmap = document.createElement("canvas");
  bitmap.width = side;
  bitmap.height = side;
  const context = bitmap.getContext("2d");
  trace(context, PEN, ([x, y]) => [
    side / 2 + (x - (left + right) / 2) * squeeze,
    side / 2 + (y - (top + bottom) / 2) * scale,
  ]);
  const alpha = context.getImageData(0, 0, side, side).data;
  const rows = Array.from({ length: SIDE }, () => new Array(SIDE).fill(0));
  for (let y = 0; y < side; y += 1) {
    for (let x = 0; x < side; x += 1) {
      rows[Math.floor(y / BLOCK)][Math.floor(x / BLOCK)] += alpha[4 * (y * side + x) + 3] / 255;
    }
  }
  return rows.map((row) => row.map((ink) => Math.min(16, Math.round(ink))));
}

function range(values) {
  return [Math.min(...values), Math.max(...values)];
}

function show(rows) {
  $("seen").replaceChildren(
    ...rows.flat().map((pixel) => {
      const square = document.createElement("i");
      square.style.setProperty("--pixel", pixel);
      return square;
    }),
  );
}

// ---- prediction ----

let asking = false;
let stale = false;

/** Shows the changed drawing, and requests its prediction once the previous answer has arrived. */
async function changed() {
  redraw();
  if (strokes.length === 0) {
    return;
  }
  show(image());
  stale = true;
  if (asking) {
    return;
  }
  asking = true;
  try {
    while (stale && strokes.length > 0) {
      stale = false;
      tell(await predict(image()));
    }
    $("digits-error").textContent = "";
  } catch (error) {
    $("digits-error").textContent = error.message;
  } finally {
    asking = false;
  }
}

async function predict(rows) {
  return (await post("/digits", rows)).json();
}

function tell({ digit, probabilities, batch }) {
  if (strokes.length === 0) {
    return;
  }
  $("digit").textContent = digit;
  $("seen").setAttribute("aria-label", `The drawing at 8 by 8 pixels, recognised as a ${digit}`);
  $("batch-id").textContent = `#${batch.id}`;
  $("batch-size").textContent = batch.size;
  $("batch-reason").textContent = batch.reason;
  for (const [index, chance] of probabilities.entries()) {
    const bar = $("bars").children[index];
    bar.classList.toggle("best", index === digit);
    bar.style.setProperty("--chance", chance);
    bar.querySelector(".percent").textContent = `${Math.round(chance * 100)} %`;
  }
  document.dispatchEvent(new CustomEvent("drawn", { detail: batch }));
}

// ---- controls ----

function reset() {
  strokes = [];
  redraw();
  show(new Array(SIDE).fill(new Array(SIDE).fill(0)));
  $("seen").setAttribute("aria-label", "Nothing drawn yet");
  for (const id of ["digit", "batch-id", "batch-size", "batch-reason"]) {
    $(id).textContent = "–";
  }
  for (const bar of $("bars").children) {
    bar.classList.remove("best");
    bar.style.setProperty("--chance", 0);
    bar.querySelector(".percent").textContent = "";
  }
}

$("clear").addEventListener("click", reset);

for (const digit of SAMPLES.keys()) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = digit;
  button.setAttribute("aria-label", `Draw a ${digit}`);
  button.addEventListener("click", () => {
    strokes = structuredClone(SAMPLES[digit]);
    changed();
  });
  $("samples").append(button);

  const bar = document.createElement("li");
  const name = document.createElement("span");
  name.textContent = digit;
  const track = document.createElement("span");
  track.className = "track";
  const fill = document.createElement("div");
  fill.className = "fill";
  track.append(fill);
  const percent = document.createElement("span");
  percent.className = "percent";
  bar.append(name, track, percent);
  $("bars").append(bar);
}

window.addEventListener("resize", redraw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
reset();
