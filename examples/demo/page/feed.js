// The server's feed of the show: one stream, reconnected whenever it breaks.

import { Refused, lines, post } from "./server.js";

const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 4000;

/**
 * Watches the show while the page is visible.
 *
 * @param take Called with each frame, and whether it is the first of a connection.
 * @param say Called with "connecting", "live" or "away", and a text for the viewer.
 */
export async function watch(take, say) {
  let retryMs = FIRST_RETRY_MS;
  for (;;) {
    await visible();
    const hidden = new AbortController();
    const leave = () => document.hidden && hidden.abort();
    document.addEventListener("visibilitychange", leave);
    try {
      const answer = await post("/show", {}, {
        accept: "application/x-ndjson",
        signal: hidden.signal,
      });
      let isFirst = true;
      for await (const message of lines(answer)) {
        if ("item" in message) {
          take(message.item, isFirst);
          if (isFirst) {
            say("live", "Live");
          }
          isFirst = false;
          retryMs = FIRST_RETRY_MS;
        }
      }
      say("away", "The server is unreachable; trying again");
    } catch (error) {
      if (error.name !== "AbortError") {
        say("away", error instanceof Refused ? error.message : "The server is unreachable; trying again");
      }
    } finally {
      document.removeEventListener("visibilitychange", leave);
    }
    if (!document.hidden) {
      await new Promise((resolve) => setTimeout(resolve, retryMs));
      retryMs = Math.min(retryMs * 2, LAST_RETRY_MS);
    }
  }
}

function visible() {
  return new Promise((resolve) => {
    const look = () => {
      if (!document.hidden) {
        document.removeEventListener("visibilitychange", look);
        resolve();
      }
    };
    document.addEventListener("visibilitychange", look);
    look();
  });
}
