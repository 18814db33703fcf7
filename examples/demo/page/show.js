// The two halves of the show share one feed, and one button that stops their drawing.

import { Crowd } from "./crowd.js";
import { watch } from "./feed.js";
import { Lanes } from "./lanes.js";

const $ = (id) => document.getElementById(id);
const crowd = new Crowd();
const lanes = new Lanes();

let paused = false;

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", paused);
  $("pause").textContent = paused ? "Go on" : "Pause";
  crowd.paused = lanes.paused = paused;
});

watch(
  (frame, isFirst) => {
    crowd.take(frame, isFirst);
    lanes.take(frame, isFirst);
  },
  (state, text) => {
    $("live").dataset.state = state;
    $("live").textContent = text;
    if (state !== "live") {
      crowd.stand();
    }
  },
);
