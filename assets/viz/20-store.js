// ---- One run as the page knows it: numbered deltas in, steps by lane out. ----

const LANES = ["speculative", "baseline"];

class Run {
  constructor(id, fields) {
    this.id = id;
    this.fields = fields;
    this.next = 0; // the seq expected next
    this.early = new Map(); // deltas that came before their turn
    this.phase = "loading";
    this.note = "";
    this.start = null;
    this.end = null;
    this.theory = null;
    this.pieces = new Map();
    this.started = {};
    this.copies = new Copies();
    this.finished = {};
    this.settings = null; // of the controls when it was asked for, or came on view
    this.steps = { speculative: [], baseline: [] };
    this.course = []; // all steps in the order they were decoded
  }

  /** Take a delta. Returns the deltas that could be applied, in order. */
  accept(delta) {
    if (delta.seq < this.next) return [];
    this.early.set(delta.seq, delta);
    const applied = [];
    while (this.early.has(this.next)) {
      const ready = this.early.get(this.next);
      this.early.delete(this.next);
      this.next += 1;
      this.apply(ready);
      applied.push(ready);
    }
    return applied;
  }

  /** The seqs between what was applied and what has come, or null. */
  gap() {
    return this.early.size ? { run: this.id, from: this.next, to: Math.max(...this.early.keys()) } : null;
  }

  apply(delta) {
    this.phase = delta.phase;
    this.note = delta.note;
    for (const part of ["start", "end", "theory"]) if (delta[part]) this[part] = delta[part];
    for (const [id, piece] of Object.entries(delta.pieces)) this.pieces.set(Number(id), piece);
    this.copies.sources.push(...(delta.sources ?? []));
    for (const event of delta.events) {
      if (event.kind === "started") this.started[event.lane] = event;
      else if (event.kind === "finished") this.finished[event.lane] = event;
      else if (event.kind === "step") this.addStep(event);
    }
  }

  addStep(step) {
    step.row = Object.fromEntries(this.fields.map((name, index) => [name, step.row[index]]));
    step.drafted = step.chips.filter((chip) => chip.node !== undefined);
    for (const chip of step.drafted) chip.depth = chip.parent < 0 ? 1 : step.drafted[chip.parent].depth + 1;
    step.numAccepted = step.drafted.filter((chip) => chip.kind === "accepted").length;
    this.steps[step.lane].push(step);
    this.course.push(step);
    this.copies.add(step);
  }

  get duration() {
    return Math.max(0, ...LANES.map((lane) => this.steps[lane].at(-1)?.t ?? 0));
  }

  /** Steps of a lane whose clock stood at or before `time`. */
  countAt(lane, time) {
    const steps = this.steps[lane];
    let low = 0;
    let high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle].t <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The lane's running numbers at `time`, or null before its first step. */
  rowAt(lane, time) {
    return this.steps[lane][this.countAt(lane, time) - 1]?.row ?? null;
  }

  /** Baseline seconds per token over speculative seconds per token, as far as both have come. */
  speedupAt(time) {
    const ours = this.rowAt("speculative", time);
    const plain = this.rowAt("baseline", time);
    if (!ours?.tokens_per_s || !plain?.tokens_per_s) return null;
    return ours.tokens_per_s / plain.tokens_per_s;
  }

  get greedy() {
    return this.start?.config?.temperature === 0;
  }

  get naive() {
    return this.start?.config?.rule === "naive";
  }

  /** Decoded with no draft: both prompt passes come before any other pass, so this is known from the first one. */
  get alone() {
    return this.steps.baseline.length > 0 && !this.started.speculative && !this.steps.speculative.length;
  }

  get wasStopped() {
    const reasons = LANES.map((lane) => this.finished[lane]?.reason);
    return reasons.includes("cancelled") && !reasons.includes("error"); // an error in one lane stops the other
  }

  /** How a lane ended before its time, in words; "" while it goes on, and where its text simply ended. */
  cutShort(lane) {
    const tokens = this.steps[lane].at(-1)?.row.tokens ?? 0;
    if (this.live || !(this.started[lane] || tokens)) return "";
    const reason = this.finished[lane]?.reason;
    const how = { cancelled: "stopped", error: "broken off by an error", undefined: "cut off" }[reason];
    return how ? `${how} ${tokens ? `after ${plural(tokens, "token")}` : "before the first token"}` : "";
  }

  get live() {
    return this.phase === "loading" || this.phase === "running";
  }
}
