// Sends a prompt, and shows the text while it is generated.

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

/** Shows whether text is being written. */
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
  let unseen = ""; // Characters arrive faster than the screen is redrawn.
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
  $("status").textContent = "Waiting in the queue";
  writing(true);
  try {
    const answer = await post("/generate", prompt, {
      accept: "application/x-ndjson",
      signal: stop.signal,
    });
    let ended = false;
    for await (const message of lines(answer)) {
      if ("error" in message) {
        throw new Error(message.error.detail || message.error.title);
      }
      if ("item" in message) {
        if (!unseen) {
          requestAnimationFrame(show);
        }
        count += 1;
        unseen += message.item;
      }
      ended = "end" in message;
    }
    if (!ended) {
      throw new Error("The connection was lost before the end of the text.");
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
