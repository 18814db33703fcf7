// The server's feed: one stream of server-sent events, reconnected whenever it breaks.
// It is read by fetch(), since an EventSource can't tell why it was refused.

const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 4000;

/**
 * Watches the server while the page is visible.
 *
 * @param take Called with each message.
 * @param say Called with "connecting", "live" or "away", and a text for the viewer.
 */
export async function watch(take, say) {
  let retryMs = FIRST_RETRY_MS;
  for (;;) {
    await visible();
    const hidden = new AbortController();
    const leave = () => document.hidden && hidden.abort();
    document.addEventListener("visibilitychange", leave);
    let why = "The server is away; trying again";
    try {
      const answer = await fetch("dashboard/feed", { cache: "no-store", signal: hidden.signal });
      if (answer.ok) {
        for await (const message of messages(answer.body)) {
          take(message);
          say("live", "Live");
          retryMs = FIRST_RETRY_MS;
        }
      } else {
        const problem = await answer.json();
        why = `${problem.title}. ${problem.detail ?? ""}`;
      }
    } catch (error) {
      if (!(error instanceof TypeError || error instanceof SyntaxError || error.name === "AbortError")) {
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

/** Yields the data of each event. */
async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
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
