// ---- Play, pause, step, scrub, speed, jump: where on the lane clock the page looks. ----

const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4];

class Transport {
  /** `onMove(time)` is called whenever the time looked at has changed. */
  constructor(onMove) {
    this.onMove = onMove;
    this.run = null;
    this.time = 0;
    this.playing = false;
    this.live = false; // stay at the end while the run grows
    this.speed = 0.5;
    this.build();
  }

  build() {
    const button = (name, label, action) =>
      el("button", { type: "button", class: "sv-btn", title: label, "aria-label": label, onclick: action }, icon(name));
    this.playButton = button("play", "Play (Space)", () => this.toggle());
    this.jump = el("button", {
      type: "button", class: "sv-btn wide", text: "Next rejection", title: "Jump to the next pass with a rejected token (X)",
      onclick: () => this.nextRejection(),
    });
    this.speedButton = el("button", {
      type: "button", class: "sv-btn wide", title: "Playing speed ([ slower, ] faster)",
      onclick: () => this.setSpeed(SPEEDS[(SPEEDS.indexOf(this.speed) + 1) % SPEEDS.length]),
    });
    this.range = el("input", {
      type: "range", min: "0", max: "1000", step: "1", value: "0", class: "sv-range", "aria-label": "Lane time",
      oninput: () => this.seek((this.range.value / 1000) * (this.run?.duration ?? 0)),
    });
    this.label = el("output", { class: "sv-time" });
    this.canvas = el("canvas", {
      class: "sv-strip", role: "img", "aria-label": "One column for each pass of the lane with a draft",
      onclick: (event) => this.pick(event),
    });
    this.root = el(
      "div",
      { class: "sv-transport" },
      el(
        "div",
        { class: "sv-buttons" },
        button("first", "To the start (Home)", () => this.seek(0)),
        button("back", "One pass back (←)", () => this.step(-1)),
        this.playButton,
        button("next", "One pass on (→)", () => this.step(1)),
        button("last", "To the end (End)", () => this.toEnd()),
        this.jump,
        this.speedButton,
        this.label
      ),
      el("div", { class: "sv-stripbox" }, this.canvas, this.range)
    );
    this.setSpeed(this.speed);
    this.width = 0; // asked for once a resize: reading it lays the page out
    new ResizeObserver(() => {
      this.width = this.canvas.clientWidth;
      this.drawStrip();
    }).observe(this.range); // as wide as the strip, whose own height follows from what is drawn
  }

  load(run, { live }) {
    this.pause();
    this.run = run;
    this.live = live;
    this.time = 0;
    this.refresh();
  }

  /** The run has grown. */
  grew() {
    if (this.live) this.time = this.run.duration;
    this.refresh();
  }

  get passes() {
    const { speculative, baseline } = this.run.steps;
    return speculative.length ? speculative : baseline;
  }

  seek(time) {
    this.live = false;
    this.time = Math.max(0, Math.min(time, this.run?.duration ?? 0));
    this.refresh();
    this.onMove(this.time);
  }

  toEnd() {
    this.pause();
    this.seek(this.run?.duration ?? 0);
    this.live = Boolean(this.run?.live);
  }

  step(by) {
    if (!this.run) return;
    this.pause();
    const lane = this.passes === this.run.steps.speculative ? "speculative" : "baseline";
    const at = this.run.countAt(lane, this.time) + by;
    if (at > this.passes.length) this.seek(this.run.duration);
    else this.seek(at <= 0 ? 0 : this.passes[at - 1].t);
  }

  nextRejection() {
    if (!this.run) return;
    this.pause();
    const rejected = this.passes.filter((step) => step.chips.some((chip) => chip.kind === "rejected"));
    const next = rejected.find((step) => step.t > this.time) ?? rejected[0];
    if (next) this.seek(next.t);
  }

  setSpeed(speed) {
    this.speed = speed;
    this.speedButton.textContent = `${speed}×`;
    this.speedButton.setAttribute("aria-label", `Speed ${speed} times; press to change`);
  }

  changeSpeed(by) {
    const index = Math.max(0, Math.min(SPEEDS.length - 1, SPEEDS.indexOf(this.speed) + by));
    this.setSpeed(SPEEDS[index]);
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  play() {
    if (!this.run?.duration) return;
    if (this.time >= this.run.duration) this.time = 0;
    this.live = false;
    this.playing = true;
    this.setPlayIcon();
    let last = performance.now();
    const frame = (now) => {
      if (!this.playing) return;
      this.time = Math.min(this.run.duration, this.time + ((now - last) / 1000) * this.speed);
      last = now;
      if (this.time >= this.run.duration) this.pause();
      this.refresh();
      this.onMove(this.time);
      if (this.playing) requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  /** What a run that is over does when it is opened: play from its first pass, or stand at its end. */
  begin() {
    if (reducedMotion.matches) return this.toEnd();
    if (this.run) this.seek(this.passes[0]?.t ?? 0);
    return this.play();
  }

  pause() {
    this.playing = false;
    this.setPlayIcon();
  }

  setPlayIcon() {
    const name = this.playing ? "pause" : "play";
    this.playButton.replaceChildren(icon(name));
    this.playButton.setAttribute("aria-label", this.playing ? "Pause (Space)" : "Play (Space)");
  }

  refresh() {
    const duration = this.run?.duration ?? 0;
    this.range.value = duration ? Math.round((this.time / duration) * 1000) : 0;
    this.range.setAttribute("aria-valuetext", `${seconds(this.time)} of ${seconds(duration)}`);
    this.label.textContent = `${this.time.toFixed(2)} s of ${duration.toFixed(2)} s lane time`;
    this.drawStrip();
  }

  pick(event) {
    const box = this.canvas.getBoundingClientRect();
    const index = Math.floor(((event.clientX - box.left) / box.width) * this.passes.length);
    const step = this.passes[Math.max(0, Math.min(index, this.passes.length - 1))];
    if (step) {
      this.pause();
      this.seek(step.t);
    }
  }

  /** One column a pass, one cell a token; what lies after the time looked at is faint. */
  drawStrip() {
    const { width } = this;
    if (!width || !this.run) return;
    const passes = this.passes;
    const rows = Math.min(17, Math.max(5, ...passes.map((step) => step.chips.length)));
    const cell = Math.max(4, Math.min(9, Math.floor(72 / rows)));
    const height = rows * cell;
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== width * ratio || this.canvas.height !== height * ratio) {
      this.canvas.width = width * ratio;
      this.canvas.height = height * ratio;
      this.canvas.style.height = `${height}px`;
    }
    const paint = this.canvas.getContext("2d");
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.clearRect(0, 0, width, height);
    const style = getComputedStyle(this.canvas);
    const colour = Object.fromEntries(
      Object.keys(TAGS).map((kind) => [kind, style.getPropertyValue(`--sv-strip-${kind}`).trim() || "gray"])
    );
    const column = width / Math.max(passes.length, 24);
    const gap = column > 4 ? Math.min(3, column * 0.2) : 0;
    passes.forEach((step, index) => {
      paint.globalAlpha = step.t <= this.time ? 1 : 0.22;
      step.chips.slice(0, rows).forEach((chip, row) => {
        paint.fillStyle = colour[chip.kind];
        const inset = chip.kind === "untested" ? cell * 0.3 : 0;
        paint.fillRect(index * column, height - (row + 1) * cell + inset, Math.max(1, column - gap), cell - 1 - inset * 2);
      });
    });
    paint.globalAlpha = 1;
  }
}
