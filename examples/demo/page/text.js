// Send a prompt, and show the text as it is written.

import { lines, post } from "./server.js";

const $ = (id) => document.getElementById(id);

let stop = null; // An AbortController while text is being written.

function follow(input, output) {
  const show = () => {
    $(output).textContent = $(input).value;
  };
  $(input).addEventListener("input", show);
  show();
}

/** Show that text is being written, or no more. */
function writing(on) {
  $("write").disabled = on;
  $("stop").disabled = !on;
  $("caret").hidden = !on;
  $("paper").setAttribute("aria-busy", on);
}

async function write(prompt) {
  stop = new AbortController();
  const started = performance.now();
  let count = 0;
  let unseen = ""; // Characters come faster than the screen shows frames.
  const progress = (word) => {
    const seconds = (performance.now() - started) / 1000;
    const rate = count ? `, ${Math.round(count / seconds)} a second` : "";
    $("status").textContent = `${word}: ${count} characters${rate}`;
  };
  const show = () => {
    if (unseen) {
      $("written").append(unseen);
      unseen = "";
      $("paper").scrollTop = $("paper").scrollHeight;
      progress("Writing");
    }
  };
  $("given").textContent = prompt.text;
  $("written").textContent = "";
  $("text-error").textContent = "";
  $("status").textContent = "Waiting for a place";
  writing(true);
  try {
    const answer = await post("/generate", prompt, {
      accept: "application/x-ndjson",
      signal: stop.signal,
    });
    let ended = false;
    for await (const line of lines(answer)) {
      if ("error" in line) {
        throw new Error(line.error.detail || line.error.title);
      }
      if ("item" in line) {
        if (!unseen) {
          requestAnimationFrame(show);
        }
        count += 1;
        unseen += line.item;
      }
      ended = "end" in line;
    }
    if (!ended) {
      throw new Error("The connection was lost before the text was over.");
    }
    show();
    progress("Done");
  } catch (error) {
    show();
    if (error.name === "AbortError") {
      progress("Stopped");
    } else {
      $("text-error").textContent = error.message;
      $("status").textContent = "";
    }
  } finally {
    stop = null;
    writing(false);
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (stop === null) {
    write({
      text: $("prompt").value,
      max_tokens: Number($("length").value),
      temperature: Number($("temperature").value),
      seed: $("seed").value === "" ? null : Number($("seed").value),
    });
  }
});

$("stop").addEventListener("click", () => stop?.abort());

$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    $("form").requestSubmit();
  }
});

follow("temperature", "temperature-value");
follow("length", "length-value");
