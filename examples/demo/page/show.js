// Connects both halves of the show to one feed, and to the button that pauses them.

import { Crowd } from "./crowd.js";
import { frames } from "./feed.js";
import { Lanes } from "./lanes.js";
import { watch } from "./watch.js";

const $ = (id) => document.getElementById(id);
const crowd = new Crowd();
const lanes = new Lanes();

let paused = false;
let beganAt = null; // When the latest show began.

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", paused);
  $("pause").textContent = paused ? "Resume" : "Pause";
  crowd.paused = lanes.paused = paused;
});

watch(
  frames,
  (frame, isFirst) => {
    if (beganAt !== null && frame.began_at !== beganAt) {
      crowd.disown();
      lanes.disown();
    }
    beganAt = frame.began_at;
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
