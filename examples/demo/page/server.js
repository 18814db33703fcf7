// What all parts of the page need to talk to the server.

/** A server's refusal; its message is the server's. */
export class Refused extends Error {}

/** Send a JSON body; throws a Refused where the server refuses. */
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

/** Yield the values of an NDJSON answer, each as soon as its line is whole. */
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
    return problem.detail || problem.title || `The server answered ${response.status}.`;
  } catch {
    return `The server answered ${response.status}.`;
  }
}
