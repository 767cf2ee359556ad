// ---- What a run copied: chips by place, counts by source, and where the copy that holds a token began. ----

const SOURCE_NAMES = { prompt: "the prompt", output: "the answer" };

/** What a run copied: chips by the place they were copied from. */
class Copies {
  constructor() {
    this.sources = [];
    this.byPlace = new Map();
    this.anyAccepted = false;
  }

  add(step) {
    step.chips.forEach((chip, index) => {
      if (!chip.o) return;
      this.anyAccepted ||= chip.kind === "accepted";
      const key = `${chip.o[0]}:${chip.o[1]}`;
      if (!this.byPlace.has(key)) this.byPlace.set(key, []);
      this.byPlace.get(key).push({ step, chip, index });
    });
  }

  at(source, offset) {
    return this.byPlace.get(`${this.sources.indexOf(source)}:${offset}`) ?? [];
  }

  /** Offsets of a source that any copy came from, with the chip, ascending. */
  excerpts(source) {
    const number = `${this.sources.indexOf(source)}:`;
    return [...this.byPlace]
      .filter(([key]) => key.startsWith(number))
      .map(([key, chips]) => [Number(key.slice(number.length)), chips[0].chip])
      .sort((a, b) => a[0] - b[0]);
  }
}

/** Counts of the passes shown, moved on or back with the time. */
class Used {
  constructor(run) {
    this.run = run;
    this.shown = 0;
    this.bySource = new Map();
    this.drawn = 0;
    this.own = 0;
    this.plain = 0;
  }

  add(step) {
    this.plain += hasNoDraft(step) ? 1 : 0;
    for (const chip of step.chips) {
      const accepted = chip.kind === "accepted";
      if (chip.node === undefined) this.own += 1;
      else if (!chip.o) this.drawn += accepted ? 1 : 0;
      else {
        const tally = this.of(this.run.copies.sources[chip.o[0]]);
        tally.drafted += 1;
        if (accepted) tally.accepted += 1;
        if (accepted) tally.offsets.add(chip.o[1]);
      }
    }
  }

  of(source) {
    if (!this.bySource.has(source)) this.bySource.set(source, { drafted: 0, accepted: 0, offsets: new Set() });
    return this.bySource.get(source);
  }
}

/** A pass that could have held a draft, had anything matched. */
function hasNoDraft(step) {
  return step.lane === "speculative" && step.gamma > 0 && !step.drafted.length;
}

/** [from, to) of offsets that follow one another. */
function stretches(offsets) {
  const joined = [];
  for (const offset of [...offsets].sort((a, b) => a - b)) {
    if (joined.length && joined.at(-1)[1] === offset) joined.at(-1)[1] += 1;
    else joined.push([offset, offset + 1]);
  }
  return joined;
}

/** Everything that can be shown by name, with the number of its tokens where that is known. */
function shelfOf(run) {
  const sizes = new Map((run.start?.references ?? []).map((one) => [one.name, one.num_tokens]));
  for (const name of run.copies.sources) if (!sizes.has(name)) sizes.set(name, null);
  if (sizes.has("prompt")) sizes.set("prompt", run.started.speculative?.num_prompt_tokens ?? null);
  return sizes;
}

/** Where the copy that holds a token began, and how much before it matched. */
function matchOf(run, token) {
  let chip = token.chip;
  const drafted = token.step.drafted;
  while (chip.parent >= 0 && drafted[chip.parent].o?.[0] === chip.o[0] && drafted[chip.parent].o[1] === chip.o[1] - 1) chip = drafted[chip.parent];
  return { name: run.copies.sources[chip.o[0]], start: chip.o[1], length: chip.o[2] };
}

/** The last tokens of the lane before a pass. */
function textsBefore(run, step, most) {
  const steps = run.steps.speculative;
  const texts = [];
  for (let index = steps.indexOf(step) - 1; index >= 0 && texts.length < most; index -= 1) {
    const emitted = steps[index].chips.filter((chip) => chip.kind !== "rejected" && chip.kind !== "untested");
    texts.unshift(...emitted.map((chip) => textOf(run, chip)));
  }
  return texts.slice(-most);
}
