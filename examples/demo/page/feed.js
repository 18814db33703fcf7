// The server's feed of the show.

import { lines, post } from "./server.js";

/** Yields the frames of one connection. */
export async function* frames(signal) {
  const answer = await post("/show", {}, { accept: "application/x-ndjson", signal });
  for await (const message of lines(answer)) {
    if ("item" in message) {
      yield message.item;
    }
  }
}
