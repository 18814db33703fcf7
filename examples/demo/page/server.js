// Communication with the server, for all parts of the page.

import { Refused } from "./watch.js";

/** Sends a JSON body; throws Refused, with the server's message, for an error response. */
export async function post(path, body, { accept = "application/json", signal } = {}) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", accept },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) {
    throw new Refused(await explain(response));
  }
  return response;
}

/** Yields the values of an NDJSON response, each as soon as its line is complete. */
export async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) {
      return;
    }
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.trim()) {
        yield JSON.parse(part);
      }
    }
  }
}

async function explain(response) {
  try {
    const problem = await response.json();
    return problem.detail || problem.title || `The server responded with status ${response.status}.`;
  } catch {
    return `The server responded with status ${response.status}.`;
  }
}
