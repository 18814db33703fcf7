// Draws the last batches of one batcher, on a time axis that all batchers share.
//
// A batch is a bar: its width is how long it ran, its height how full it was, its colour why it was
// dispatched. Batches that run at the same time are in tracks, one above the other. The line below
// is how long the batch's oldest request had waited. Of a batch that requests join while it runs,
// each place is a row, and a bar in it is a request, from when it joined until it left.

export const DELAY_S = 0.6; // Behind the server, so that the server has reported everything shown.
const KEPT = 4000;
const MOST_TRACKS = 6;
const MOST_PLACES = 64; // As many as the server distinguishes.
const TRACK = 44; // Pixels.
const WAIT_ROWS = 3; // Waits overlap, so they are drawn in alternating rows.
const WAIT_ROW = 4;
const LABELLED = 76; // A bar so wide has its reason as a word.
const FONT = "system-ui, sans-serif";

export const REASONS = {
  full: "it was full",
  timer: "its oldest request had waited long enough",
  idle: "no further request arrived",
  regather: "the callers of the last batch were back",
  limit: "the limit allowed it, or the time of a RetryLater was over",
  deadline: "a deadline was near",
  flush: "flush() was called",
  retry: "it ran again, without a wait",
  drain: "the server ends",
  open: "requests join while it runs",
};

export class Lane {
  limit = 1;
  isOpen = false;
  #ended = []; // Bars, in the order of their ends.
  #running = new Map();
  #tracks = []; // When each track is free again.

  constructor(canvas) {
    this.canvas = canvas;
  }

  /** How many tracks or places there are. */
  get height() {
    if (this.isOpen) {
      return Math.max(48, Math.min(this.limit, MOST_PLACES) * 12) + 8;
    }
    const tracks = Math.max(1, Math.min(this.#tracks.length, MOST_TRACKS));
    return Math.max(64, tracks * TRACK) + WAIT_ROWS * WAIT_ROW + 6;
  }

  take({ limit, open, rows, now }) {
    this.limit = Math.max(1, limit);
    this.isOpen = open;
    const running = new Map();
    if (open) {
      for (const [, batch, place, began, ended, waited, outcome, id] of rows) {
        this.#ended.push({ batch, place, began, ended, waited, outcome, id });
      }
      for (const [batch, place, began, waited, id] of now) {
        running.set(`${batch}/${place}/${began}`, { batch, place, began, ended: null, waited, id });
      }
    } else {
      const news = rows.map(([, id, reason, size, most, load, began, ended, waited, failed, left, error]) => (
        { id, reason, size, most, load, began, ended, waited, failed, left, error }
      ));
      for (const [id, reason, size, began, waited] of now) {
        news.push({ id, reason, size, most: limit, load: size, began, ended: null, waited, failed: 0, left: 0, error: null });
      }
      for (const bar of news.toSorted((one, other) => one.began - other.began)) {
        bar.track = this.#running.get(bar.id)?.track ?? this.#freeTrack(bar.began);
        this.#tracks[bar.track] = bar.ended ?? Infinity;
        if (bar.ended === null) {
          running.set(bar.id, bar);
        }
      }
      this.#ended.push(...news.filter(({ ended }) => ended !== null));
      const taken = new Set([...running.values()].map(({ track }) => track));
      this.#tracks.forEach((until, track) => {
        if (until === Infinity && !taken.has(track)) {
          this.#tracks[track] = 0; // its end was not reported
        }
      });
    }
    this.#running = running;
    this.#ended.splice(0, this.#ended.length - KEPT);
  }

  #freeTrack(began) {
    const free = this.#tracks.findIndex((until) => until <= began + 0.0005);
    return free < 0 ? this.#tracks.length : free;
  }

  /** The bars that are at least in part after a moment, the latest first. */
  *#since(at) {
    yield* this.#running.values();
    for (let index = this.#ended.length - 1; index >= 0; index -= 1) {
      if (this.#ended[index].ended < at) {
        return;
      }
      yield this.#ended[index];
    }
  }

  /** Whether nothing runs, or has run after a moment. */
  isQuiet(at) {
    return this.#since(at).next().done;
  }

  /**
   * Counts what ended after a moment.
   *
   * @returns How many batches by reason, their mean size, wait and run time; or how many left.
   */
  summary(at) {
    const reasons = {};
    let [count, sizes, waits, runs] = [0, 0, 0, 0];
    for (const bar of this.#since(at)) {
      if (bar.ended !== null) {
        count += 1;
        sizes += bar.size ?? 0;
        waits += bar.waited;
        runs += bar.ended - bar.began;
        if (bar.reason) {
          reasons[bar.reason] = (reasons[bar.reason] ?? 0) + 1;
        }
      }
    }
    return {
      reasons, count, running: this.#running.size,
      size: sizes / count, waited: waits / count, ran: runs / count,
    };
  }

  /**
   * @param until The time at the right edge.
   * @param seconds How much time is shown.
   * @param colors What `colorsOf` returned.
   */
  draw(until, seconds, colors) {
    const { canvas } = this;
    const sharp = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== Math.round(width * sharp) || canvas.height !== Math.round(height * sharp)) {
      canvas.width = Math.round(width * sharp);
      canvas.height = Math.round(height * sharp);
    }
    const context = canvas.getContext("2d");
    context.setTransform(sharp, 0, 0, sharp, 0, 0);
    context.clearRect(0, 0, width, height);
    const view = { context, colors, width, height, until, scale: width / seconds };
    view.x = (at) => width - (until - at) * view.scale;
    drawGrid(view, seconds);
    if (this.isOpen) {
      this.#drawPlaces(view, seconds);
    } else {
      this.#drawBatches(view, seconds);
    }
  }

  #geometry(height) {
    if (this.isOpen) {
      const places = Math.min(this.limit, MOST_PLACES);
      return { places, tall: (height - 8) / places };
    }
    const base = height - WAIT_ROWS * WAIT_ROW - 5;
    const tracks = Math.max(1, Math.min(this.#tracks.length, MOST_TRACKS));
    return { base, tracks, tall: base / tracks };
  }

  #drawBatches(view, seconds) {
    const { context, colors, width, height, x } = view;
    const { base, tracks, tall } = this.#geometry(height);
    context.fillStyle = colors.line;
    for (let track = 1; track <= tracks; track += 1) {
      context.fillRect(0, Math.round(track * tall) - 1, width, 1);
    }
    for (const bar of this.#since(view.until - seconds)) {
      const left = x(bar.began);
      const right = bar.ended === null ? width : x(bar.ended);
      if (left > width) {
        continue;
      }
      const wide = Math.max(1.5, right - left - 1);
      const bottom = Math.round(((bar.track % tracks) + 1) * tall) - 1;
      const most = tall - 7;
      const high = Math.max(3, Math.min(1, Math.max(bar.size, bar.load) / bar.most) * most);
      const color = colors.reasons[bar.reason] ?? colors.reasons.flush;
      context.fillStyle = colors.empty;
      context.fillRect(left, bottom - most, wide, most);
      context.fillStyle = color;
      context.globalAlpha = bar.ended === null ? 0.55 : 1;
      context.fillRect(left, bottom - high, wide, high);
      context.globalAlpha = 0.8;
      const row = base + 4 + WAIT_ROW * (bar.id % WAIT_ROWS);
      context.fillRect(x(bar.began - bar.waited), row, Math.max(1, bar.waited * view.scale), 2.5);
      context.globalAlpha = 1;
      if (bar.failed > 0) {
        context.fillStyle = colors.failed;
        context.fillRect(left, bottom - most - 3, Math.max(wide, 4), 4);
      }
      writeSize(view, bar, left, wide, bottom, high);
    }
  }

  #drawPlaces(view, seconds) {
    const { context, colors, width, x } = view;
    const { places, tall } = this.#geometry(view.height);
    context.fillStyle = colors.empty;
    const gap = tall > 5 ? 2 : 0.5;
    for (let place = 0; place < places; place += 1) {
      context.fillRect(0, 4 + place * tall, width, tall - gap);
    }
    for (const bar of this.#since(view.until - seconds)) {
      if (bar.place >= places || x(bar.began) > width) {
        continue;
      }
      const left = x(bar.began);
      const right = bar.ended === null ? width : x(bar.ended);
      const top = 4 + bar.place * tall;
      context.fillStyle = colors.reasons.open;
      context.globalAlpha = bar.ended === null ? 0.6 : 0.9;
      context.fillRect(left, top, Math.max(1.5, right - left - 1.5), tall - gap);
      context.globalAlpha = 1;
      context.fillStyle = colors.text;
      context.fillRect(left, top, 1.5, tall - gap);
      if (bar.ended !== null && bar.outcome !== "finished") {
        context.fillStyle = bar.outcome === "failed" ? colors.failed : colors.left;
        context.fillRect(right - 5, top, 4, tall - gap);
      }
    }
  }

  /** The bar at a point, or undefined. */
  at(left, top, until, seconds) {
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    const at = until - ((width - left) / width) * seconds;
    const slack = (2 * seconds) / width;
    const { tall, tracks } = this.#geometry(height);
    let found;
    for (const bar of this.#since(until - seconds)) {
      const row = this.isOpen ? bar.place : bar.track % tracks;
      const isBelow = !this.isOpen && top > tall * tracks; // among the waits
      const isThere = isBelow || Math.floor((top - (this.isOpen ? 4 : 0)) / tall) === row;
      const began = isBelow ? bar.began - bar.waited : bar.began;
      if (isThere && began - slack <= at && at <= (isBelow ? bar.began : bar.ended ?? Infinity) + slack) {
        found = bar;
        break;
      }
    }
    return found;
  }
}

function writeSize({ context, colors }, bar, left, wide, bottom, high) {
  const text = String(bar.size);
  if (wide < 7 + 6.5 * text.length) {
    return;
  }
  context.font = `600 11px ${FONT}`;
  context.textAlign = "center";
  context.textBaseline = "bottom";
  const isInside = high > 16;
  context.fillStyle = isInside && bar.ended !== null ? colors.onBar : colors.text;
  const said = wide > LABELLED && isInside ? `${text} · ${bar.reason}` : text;
  context.fillText(said, left + wide / 2, isInside ? bottom - 2 : bottom - high - 1);
}

function drawGrid({ context, colors, width, height, scale }, seconds) {
  context.fillStyle = colors.line;
  for (let ago = 0; ago < seconds; ago += stepOf(seconds)) {
    context.fillRect(Math.round(width - ago * scale) - 1, 0, 1, height);
  }
}

/** The seconds between two lines of the grid. */
export function stepOf(seconds) {
  return [0.2, 0.5, 2, 10].find((step) => seconds / step <= 6) ?? 10;
}

export function colorsOf(element) {
  const style = getComputedStyle(element);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    reasons: Object.fromEntries(Object.keys(REASONS).map((reason) => [reason, color(reason)])),
    series: Array.from({ length: 8 }, (_, index) => color(`series-${index}`)),
    ...Object.fromEntries(
      ["empty", "failed", "left", "line", "text", "soft"].map((name) => [name, color(name)]),
    ),
    onBar: color("on-bar"),
  };
}
