// The server's feed: server-sent events.
// It is read by fetch(), since an EventSource can't tell why it was refused.

import { Refused } from "./watch.js";

/** Yields the messages of one connection. */
export async function* messages(signal) {
  const answer = await fetch("dashboard/feed", { cache: "no-store", signal });
  if (!answer.ok) {
    const problem = await answer.json();
    throw new Refused(`${problem.title}. ${problem.detail ?? ""}`);
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) {
      return;
    }
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event.startsWith("data: ")) {
        yield JSON.parse(event.slice(6));
      }
    }
  }
}
