// The backends, the endpoints and the last failures.

import { bytes, count, element, mean, percent, seconds } from "./text.js";

const SERIES = 8;

export function showFigures(place, sample) {
  const { all, batchers } = sample;
  const room = Object.values(batchers);
  const most = room.reduce((sum, one) => sum + one.limit * one.batches, 0) / (all.batches || 1);
  const figures = [
    ["Requests / s", count(all.finished), "finished"],
    ["Latency", seconds(all.p50), `p99 ${seconds(all.p99)}`],
    ["Mean batch", all.batches ? mean(all.size) : "–", all.batches ? `of ${count(most)} · ${count(all.batches)} batches / s` : "no batch ended"],
    ["Waiting", count(all.queued), `${count(all.running)} running`],
    ["Streams open", count(all.streams), "at this moment"],
    ["Failed / s", count(all.failed), `${count(all.declined)} declined · ${count(all.refused)} refused · ${count(all.left)} left`],
  ];
  if (place.childElementCount !== figures.length) {
    place.replaceChildren(...figures.map(([name]) => (
      element("div.figure", element("dt", name), element("dd"), element("dd.note"))
    )));
  }
  figures.forEach(([name, value, note], index) => {
    const [, main, below] = place.children[index].children;
    main.textContent = value;
    below.textContent = note;
    place.children[index].classList.toggle("bad", name === "Failed / s" && all.failed > 0);
  });
}

export function showBackends(place, backends, samples) {
  place.replaceChildren(...backends.map((backend) => {
    const sample = samples[backend.tag];
    const levels = Object.entries(sample?.levels ?? {}).map(([level, n]) => `${n} at level ${level}`);
    return element(
      "div.row",
      element(
        "div.who",
        element("b", backend.tag),
        state(backend.state),
        note(`${backend.code} · ${backend.placement}`),
        backend.failure && element("span.note.bad", backend.failure),
      ),
      fact("Replicas", replicas(backend)),
      fact("Waiting", count(backend.queued), levels.join(", ")),
      fact("Running", count(backend.ongoing)),
      fact("Requests", count(backend.requests), backend.errors ? `${count(backend.errors)} failed` : ""),
      fact("Deaths", count(backend.deaths), backend.deaths ? `${count(backend.restarts)} restarted` : ""),
    );
  }));
  fillIn(place, "There is no backend.");
}

function replicas({ replicas: there, wanted }) {
  const dots = element("span.dots");
  for (const replica of there) {
    const dot = element("i.dot");
    dot.dataset.state = replica.state;
    const memory = bytes(replica.memory_bytes);
    const batches = `${replica.batches} ${replica.batches === 1 ? "batch" : "batches"}`;
    const models = Object.entries(replica.models).map(([name, state]) => `\n${name} (${state})`).join("");
    const address = replica.address ? ` at ${replica.address}` : "";
    dot.title = `${replica.tag}${address}: ${replica.state}, ${replica.ongoing} running, ${batches}${memory && `, ${memory}`}${models}`;
    if (models.includes("(loading)")) dot.dataset.state = "starting";
    dots.append(dot);
  }
  const ready = there.filter((replica) => replica.state === "ready").length;
  dots.append(` ${ready} of ${wanted}`);
  return dots;
}

export function showEndpoints(place, endpoints) {
  place.replaceChildren(...endpoints.map((endpoint) => element(
    "div.row",
    element(
      "div.who",
      element("b", endpoint.name),
      note(endpoint.route ? `${endpoint.methods.join(", ")} ${endpoint.route}` : "by handles only"),
    ),
    element("div.wide", element("span.label", "Traffic"), split(endpoint)),
    element(
      "div.wide",
      element("span.label", "Shadows"),
      ...(endpoint.shadows.length ? endpoint.shadows.map(shadow) : [note("none")]),
    ),
    fact("Requests", count(endpoint.requests), endpoint.errors ? `${count(endpoint.errors)} failed` : ""),
  )));
  fillIn(place, "There is no endpoint.");
}

function split({ traffic, held }) {
  const shares = Object.entries(traffic);
  if (shares.length === 0) {
    return note(`held until it is set: ${count(held)} waiting`);
  }
  const bar = element("span.split");
  const names = element("span.names");
  shares.forEach(([backend, share], index) => {
    const part = element("i");
    part.style.flexGrow = share;
    part.style.background = `var(--series-${index % SERIES})`;
    bar.append(part);
    const key = element("i.key");
    key.style.background = `var(--series-${index % SERIES})`;
    names.append(element("span", key, `${backend} ${percent(share)}`));
  });
  return element("div", bar, names);
}

function shadow({ backend, proportion, compare, sent, dropped, failed, agreed, disagreed }) {
  const compared = agreed + disagreed;
  const bar = element("span.split.agreement");
  if (compared > 0) {
    const [yes, no] = [element("i.yes"), element("i.no")];
    yes.style.flexGrow = agreed;
    no.style.flexGrow = disagreed;
    bar.append(yes, no);
  }
  const said = !compare ? "not compared" : compared ? `${percent(agreed / compared)} agree of ${count(compared)}` : "none compared yet";
  return element(
    "div",
    compared > 0 ? bar : null,
    element("span.names", element("span", `${backend}: ${said}`)),
    note([
      `${percent(proportion)} copied, ${count(sent)} so far`,
      failed && `${count(failed)} failed`,
      dropped && `${count(dropped)} dropped`,
    ].filter(Boolean).join(" · ")),
  );
}

export function showFailures(place, failures, now) {
  place.replaceChildren(...failures.map((failure) => element(
    "div.row.failure",
    element("span.age", `${seconds(Math.max(0, now - failure.at))} ago`),
    element("b", failure.error),
    element("span", `${failure.count === 1 ? "1 request" : `${failure.count} requests`} in ${failure.batcher}, batch ${failure.batch}`),
    element("span.ids", failure.ids.length ? failure.ids.join("  ") : "no request ids"),
  )));
  fillIn(place, "None since the server started.");
}

function state(word) {
  const made = element("span.state", word);
  made.dataset.state = word;
  return made;
}

function note(text) {
  return element("span.note", text);
}

function fact(label, value, below = "") {
  return element("div.fact", element("span.label", label), element("span.value", value), below && note(below));
}

function fillIn(place, text) {
  if (place.childElementCount === 0) {
    place.append(element("p.empty", text));
  }
}
