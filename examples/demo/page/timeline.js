// Draws the finished runs of a model: their time, duration, batch size and dispatch reason.

const DELAY_S = 0.35; // Delay of the drawing behind the server, so that all runs shown have ended.
const SECONDS_WIDE = 5;
const SLOWEST = 130; // Pixels a second.
const FASTEST = 210;
const KEPT = 400;
const WAIT_ROWS = 3; // Waits overlap, so they are drawn in alternating rows.
const CROWD_WIDTH = 74; // For the requests that wait now, at the right.
const DOT = 5;
const TOP = 14; // The space above is for marks.

export class Timeline {
  #runs = [];
  #downs = []; // {from, until, running} of each time without a worker; until is null while it lasts.
  #now = { queued: 0, running: 0, room: 1, state: "ready" };
  #offset = null; // The server's clock minus this page's clock, in seconds.
  #standsAt = null;
  #mine = new Set();
  #colors = null;
  #plain;

  /**
   * @param canvas Where to draw.
   * @param plain Whether all runs have one colour, because their dispatch reasons don't matter.
   */
  constructor(canvas, { plain = false } = {}) {
    this.canvas = canvas;
    this.#plain = plain;
    const forget = () => {
      this.#colors = null;
    };
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", forget);
  }

  reset() {
    this.#runs = [];
    this.#downs = [];
    this.#offset = null;
    this.#standsAt = null;
  }

  stand() {
    this.#standsAt ??= this.#serverTime();
  }

  /** The run that ended last; undefined before the first. */
  get last() {
    return this.#runs.at(-1);
  }

  /** Marks a run that contained a request of this page. */
  mark(id) {
    this.#mine.add(id);
  }

  /** Removes all marks: a new show may number its runs from the beginning. */
  disown() {
    this.#mine.clear();
  }

  take(now, batches, state) {
    const offset = now - performance.now() / 1000;
    this.#offset = this.#offset === null ? offset : this.#offset + 0.05 * (offset - this.#offset);
    this.#runs.push(...batches.map((batch) => ({ ...batch, room: state.room })));
    this.#runs.splice(0, this.#runs.length - KEPT);
    const down = this.#downs.at(-1);
    if (state.state !== "ready" && down?.until !== null) {
      this.#downs.push({ from: now, until: null, running: this.#now.running });
    } else if (state.state === "ready" && down?.until === null) {
      down.until = now;
    }
    this.#now = state;
  }

  draw() {
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
    this.#colors ??= colorsOf(canvas);
    const right = width - CROWD_WIDTH - 10;
    const scale = Math.min(FASTEST, Math.max(SLOWEST, right / SECONDS_WIDE));
    const base = height - 4 * WAIT_ROWS - 6;
    context.fillStyle = this.#colors.line;
    context.fillRect(0, base + 1, right, 1);
    this.#drawCrowd(context, right + 10, base, width);
    if (this.#offset === null) {
      return;
    }
    const shown = (this.#standsAt ?? this.#serverTime()) - DELAY_S;
    const x = (at) => right - (shown - at) * scale;
    context.save();
    context.beginPath();
    context.rect(0, 0, right, height);
    context.clip();
    for (const down of this.#downs) {
      this.#drawDown(context, down, x, Math.min(right, x(down.until ?? shown)), base);
    }
    for (const run of this.#runs) {
      if (x(run.began_at + run.lasted_s) > 0) {
        this.#drawRun(context, run, x, scale, base);
      }
    }
    context.restore();
  }

  #serverTime() {
    return performance.now() / 1000 + (this.#offset ?? 0);
  }

  #drawRun(context, run, x, scale, base) {
    const colors = this.#colors;
    const left = x(run.began_at);
    const width = Math.max(2, run.lasted_s * scale - 1.5);
    const full = base - TOP;
    const share = Math.min(1, run.size / run.room);
    const height = Math.max(3, share * full);
    const color = this.#plain ? colors.soft : (colors[run.reason] ?? colors.other);
    context.fillStyle = colors.empty;
    context.fillRect(left, TOP, width, full);
    context.fillStyle = color;
    context.fillRect(left, base - height, width, height);
    context.globalAlpha = 0.75;
    const row = base + 4 + 4 * (run.id % WAIT_ROWS);
    context.fillStyle = colors.waited;
    context.fillRect(x(run.began_at - run.waited_s), row, run.waited_s * scale, 2.5);
    context.globalAlpha = 1;
    if (width >= 15 && !this.#plain) {
      context.font = "600 11px system-ui, sans-serif";
      context.textAlign = "center";
      context.textBaseline = "bottom";
      const isInside = height > 18;
      context.fillStyle = isInside ? colors.onBar : colors.text;
      context.fillText(run.size, left + width / 2, isInside ? base - 3 : base - height - 1);
    }
    if (this.#mine.has(run.id)) {
      context.fillStyle = colors.mine;
      context.beginPath();
      context.moveTo(left + width / 2 - 6, 1);
      context.lineTo(left + width / 2 + 6, 1);
      context.lineTo(left + width / 2, 11);
      context.fill();
      context.strokeStyle = colors.mine;
      context.lineWidth = 2;
      context.strokeRect(left, base - height, width, height);
    }
  }

  #drawDown(context, { from, running }, x, right, base) {
    const left = x(from);
    const before = this.#runs.findLast((run) => run.began_at < from);
    if (before && running > 0) {
      // The interrupted run, whose requests are run again.
      const began = Math.max(0, x(before.began_at + before.lasted_s));
      const height = Math.min(1, running / before.room) * (base - TOP);
      context.strokeStyle = this.#colors.down;
      context.setLineDash([4, 3]);
      context.strokeRect(began + 1, base - height, left - began - 1, height);
      context.setLineDash([]);
    }
    context.fillStyle = this.#colors.down;
    context.globalAlpha = 0.16;
    context.fillRect(left, TOP, right - left, base - TOP);
    context.globalAlpha = 1;
    context.fillRect(left, TOP, 2, base - TOP);
    if (right - left > 100) {
      context.font = "600 12px system-ui, sans-serif";
      context.textAlign = "left";
      context.textBaseline = "top";
      context.fillText("worker killed", Math.max(left, 0) + 8, TOP + 6);
    }
  }

  /** Draws a square for each waiting request, from the bottom up. */
  #drawCrowd(context, left, base, width) {
    const { queued, running, room } = this.#now;
    const columns = Math.floor((width - left) / (DOT + 2));
    context.fillStyle = this.#colors.asking;
    for (let index = 0; index < queued; index += 1) {
      const row = Math.floor(index / columns);
      const y = base - (row + 1) * (DOT + 2);
      if (y < TOP) {
        break;
      }
      context.fillRect(left + (index % columns) * (DOT + 2), y, DOT, DOT);
    }
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "top";
    context.fillStyle = this.#colors.soft;
    context.fillText(`${queued} waiting`, left, base + 4);
  }
}

function colorsOf(canvas) {
  const style = getComputedStyle(canvas);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    full: color("full"),
    timer: color("timer"),
    regather: color("regather"),
    other: color("other"),
    empty: color("empty"),
    waited: color("waited"),
    asking: color("asking"),
    mine: color("mine"),
    down: color("error"),
    line: color("line"),
    text: color("text"),
    soft: color("soft"),
    onBar: color("on-bar"),
  };
}
