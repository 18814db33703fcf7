// Watches a stream of messages while the page is visible; it is connected again whenever it breaks.

const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 4000;

/** Why a server refused to be watched, for the viewer. */
export class Refused extends Error {}

/**
 * @param connect Called with an AbortSignal; yields the messages of one connection.
 * @param take Called with each message, and whether it is the first of its connection.
 * @param say Called with "live" or "away", and a text for the viewer.
 */
export async function watch(connect, take, say) {
  let retryMs = FIRST_RETRY_MS;
  for (;;) {
    await visible();
    const hidden = new AbortController();
    const leave = () => document.hidden && hidden.abort();
    document.addEventListener("visibilitychange", leave);
    let why = "The server is unreachable; trying again";
    try {
      let isFirst = true;
      for await (const message of connect(hidden.signal)) {
        take(message, isFirst);
        say("live", "Live");
        isFirst = false;
        retryMs = FIRST_RETRY_MS;
      }
    } catch (error) {
      if (error instanceof Refused) {
        why = error.message;
      } else if (!(error instanceof TypeError || error instanceof SyntaxError || error.name === "AbortError")) {
        throw error; // not of the network
      }
    } finally {
      document.removeEventListener("visibilitychange", leave);
    }
    if (!document.hidden) {
      say("away", why);
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
