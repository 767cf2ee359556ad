// ---- Where copies came from: each reference with what was used of it, lit from both sides. ----

const MOST_TOKENS = 1500; // of a reference on the page at once
const SOURCE_NAMES = { prompt: "the prompt", output: "the text so far" };

/** What a run copied: chips by the place they were copied from. */
class Copies {
  constructor() {
    this.sources = [];
    this.byPlace = new Map();
  }

  add(step) {
    step.chips.forEach((chip, index) => {
      if (!chip.o) return;
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

class References {
  constructor(view, ask) {
    this.view = view;
    this.ask = ask;
    this.summary = el("p", { class: "sv-refsum" });
    this.list = el("div", { class: "sv-reflist" });
    this.where = el("p", { class: "sv-refwhere" });
    this.earlier = el("button", { type: "button", class: "sv-btn wide", text: "Earlier", onclick: () => this.turn(-1) });
    this.later = el("button", { type: "button", class: "sv-btn wide", text: "Later", onclick: () => this.turn(1) });
    this.body = el("div", { class: "sv-refbody", tabindex: "0", role: "group", "aria-label": "The source's text: arrows go from copy to copy, Enter chooses the token", dir: "auto" });
    this.root = el(
      "section",
      { class: "sv-refs", "aria-label": "Where copies came from" },
      el("header", {}, el("h3", { text: "Where copies came from" }), this.summary),
      this.list,
      this.body,
      el("footer", {}, this.where, this.earlier, this.later)
    );
    this.root.hidden = true;
    this.origin = el("p", { class: "sv-origin" });
    this.whole = el("input", { type: "checkbox", "aria-label": "Include references in the saved trace" });
    this.wholeLabel = el("label", { class: "sv-whole", title: "Off: a saved trace holds only what was copied" }, this.whole, "include references");
    this.listen();
  }

  /** The parts that stand elsewhere: in the chosen token's story and beside Save. */
  place(detail, tools) {
    detail.sentence.after(this.origin);
    tools.keep.at(-1).after(this.wholeLabel);
  }

  listen() {
    const over = (event) => {
      const span = event.target.closest?.(".r");
      if (span) this.lightChips(Number(span.dataset.i));
    };
    this.body.addEventListener("pointerover", over);
    this.body.addEventListener("pointerleave", () => this.lightChips(null));
    this.body.addEventListener("click", (event) => {
      const span = event.target.closest?.(".r");
      if (span) this.choose(Number(span.dataset.i));
    });
    this.body.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("blur", () => this.lightChips(null));
  }

  // -- one run, at one time ------------------------------------------------------------------------

  show(run, time) {
    if (run !== this.run) this.reset(run);
    const references = run.start?.references ?? [];
    this.root.hidden = !run.copies.sources.length && !references.length;
    this.wholeLabel.hidden = !references.some((one) => one.kept);
    if (this.root.hidden) return;
    const shown = run.countAt("speculative", time);
    if (shown === this.used.shown && this.rows?.size) return;
    if (shown < this.used.shown) this.used = new Used(run);
    for (const step of run.steps.speculative.slice(this.used.shown, shown)) this.used.add(step);
    this.used.shown = shown;
    this.draw();
  }

  reset(run) {
    this.run = run;
    this.used = new Used(run);
    this.rows = new Map();
    this.texts = new Map();
    this.source = null;
    this.spans = new Map();
    this.cursor = null;
    this.token = undefined;
    this.list.replaceChildren();
    this.body.replaceChildren();
    this.origin.replaceChildren();
  }

  /** Everything that can be shown by name, with the number of its tokens where that is known. */
  shelf() {
    const sizes = new Map((this.run.start?.references ?? []).map((one) => [one.name, one.num_tokens]));
    for (const name of this.run.copies.sources) if (!sizes.has(name)) sizes.set(name, null);
    if (sizes.has("prompt")) sizes.set("prompt", this.run.started.speculative?.num_prompt_tokens ?? null);
    return sizes;
  }

  draw() {
    const sizes = this.shelf();
    for (const [name, size] of sizes) {
      if (!this.rows.has(name)) this.addRow(name);
      this.fillRow(name, size);
    }
    this.summary.textContent = this.inWords();
    if (this.source === null) this.open([...sizes.keys()].find((name) => name !== "output") ?? null);
    else this.mark();
  }

  inWords() {
    const parts = [...this.used.bySource].map(([name, tally]) => [tally.accepted, SOURCE_NAMES[name] ?? name]).filter(([count]) => count);
    if (this.used.drawn) parts.push([this.used.drawn, "a model's guesses"]);
    parts.sort((a, b) => b[0] - a[0]);
    const accepted = parts.map(([count, name]) => `${count.toLocaleString("en")} from ${name}`).join(", ");
    const plain = this.used.plain ? ` No draft in ${this.used.plain.toLocaleString("en")} of ${plural(this.used.shown, "pass")}.` : "";
    return (accepted ? `Accepted: ${accepted}. The target's own: ${this.used.own.toLocaleString("en")}.` : "Nothing copied yet.") + plain;
  }

  addRow(name) {
    const bar = el("span", { class: "sv-refbar", "aria-hidden": "true" });
    const count = el("span", { class: "sv-refcount" });
    const button = el(
      "button",
      { type: "button", class: "sv-refrow", "aria-pressed": "false", onclick: (event) => this.pick(name, event, bar) },
      el("span", { class: "sv-refname", text: SOURCE_NAMES[name] ?? name, dir: "auto" }),
      bar,
      count
    );
    button.disabled = name === "output";
    if (button.disabled) button.title = "Look at a token copied from here: its place lights up in the lane";
    this.rows.set(name, { button, bar, count });
    this.list.append(button);
  }

  fillRow(name, size) {
    const { bar, count } = this.rows.get(name);
    const tally = this.used.bySource.get(name);
    const used = tally?.offsets.size ?? 0;
    count.textContent = size ? `${used.toLocaleString("en")} of ${plural(size, "token")} used` : `${plural(used, "token")} used`;
    if (!size) return;
    const parts = stretches(tally?.offsets ?? []).map(([from, to]) => {
      const left = Math.min(99.5, (100 * from) / size);
      return [left, Math.max((100 * to) / size, left + 0.5)];
    });
    const stops = parts.flatMap(([left, right]) => [`transparent ${left}%`, `var(--sv-used) ${left}% ${right}%`, `transparent ${right}%`]);
    bar.style.backgroundImage = stops.length ? `linear-gradient(to right, ${stops.join(", ")})` : "none";
  }

  /** A click on a row opens it; on its bar, at that place. */
  pick(name, event, bar) {
    const box = bar.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    const size = this.shelf().get(name);
    const aimed = event.detail > 0 && size && share >= 0 && share <= 1;
    this.open(name, aimed ? Math.floor(share * size) : undefined);
  }

  // -- the text of a source ------------------------------------------------------------------------

  /** Open a source with the token `focus` in the part that is shown, scrolled to the token `aim`. */
  open(name, focus, aim = focus) {
    this.source = name;
    this.cursor = null;
    for (const [other, { button }] of this.rows) button.setAttribute("aria-pressed", String(other === name));
    if (name === null) return;
    const first = focus ?? stretches(this.used.bySource.get(name)?.offsets ?? [])[0]?.[0] ?? 0;
    if (this.has(name, first)) this.fill(aim);
    else this.load(name, first, aim);
  }

  /** Whether a place can be shown without asking: its text is here, or known not to be kept. */
  has(name, offset) {
    const text = this.texts.get(name);
    return Boolean(text && (text.absent || (offset >= text.from && offset < text.from + text.tokens.length)));
  }

  /** Ask once for each place; until it has come, and where the text is not kept, show what was copied. */
  async load(name, first, aim) {
    const from = Math.max(0, first - Math.floor(MOST_TOKENS / 3));
    this.texts.set(name, { from: 0, tokens: [], ...this.texts.get(name), asked: from });
    this.fill(aim);
    const run = this.run;
    let answer = null;
    try {
      answer = await this.ask.reference({ run: run.id, source: name, from, to: from + MOST_TOKENS });
    } catch {
      return; // what was copied is shown already
    }
    if (run !== this.run || this.texts.get(name)?.asked !== from) return;
    const tokens = answer?.tokens ?? [];
    this.texts.set(name, { from, tokens, asked: from, absent: !tokens.length });
    if (this.source === name) this.fill(aim);
  }

  turn(by) {
    const { from, tokens } = this.texts.get(this.source);
    const size = this.shelf().get(this.source) ?? 0;
    const first = by < 0 ? from - MOST_TOKENS : from + tokens.length;
    const inside = Math.max(0, Math.min(size - 1, first + Math.floor(MOST_TOKENS / 3)));
    this.open(this.source, inside, by < 0 ? from - 1 : first);
  }

  fill(aim) {
    const { from, tokens } = this.texts.get(this.source);
    this.spans = new Map();
    const span = (offset, text) => {
      const node = el("span", { class: "r", "data-i": String(offset), text });
      this.spans.set(offset, node);
      return node;
    };
    if (tokens.length) this.body.replaceChildren(...tokens.map((text, index) => span(from + index, text)));
    else this.body.replaceChildren(...this.excerptNodes(span));
    const size = this.shelf().get(this.source);
    const whole = tokens.length && size && tokens.length >= size;
    this.where.textContent = tokens.length ? (whole ? "" : `Tokens ${(from + 1).toLocaleString("en")} to ${(from + tokens.length).toLocaleString("en")} of ${size?.toLocaleString("en") ?? NA}`) : "Only what was copied is kept of this text.";
    this.earlier.hidden = this.later.hidden = !tokens.length || Boolean(whole);
    this.earlier.disabled = from === 0;
    this.later.disabled = size !== null && from + tokens.length >= size;
    this.excerptsShown = tokens.length ? null : this.run.copies.byPlace.size;
    this.mark();
    if (aim !== undefined) this.scrollTo(aim);
    this.relight();
  }

  excerptNodes(span) {
    const nodes = [];
    let expected = 0;
    for (const [offset, chip] of this.run.copies.excerpts(this.source)) {
      if (offset !== expected) nodes.push(el("span", { class: "gap", text: " … " }));
      nodes.push(span(offset, textOf(this.run, chip)));
      expected = offset + 1;
    }
    return nodes;
  }

  /** Show on the text what has been used by now. */
  mark() {
    if (this.excerptsShown !== null && this.excerptsShown !== this.run.copies.byPlace.size) return void this.fill();
    const offsets = this.used.bySource.get(this.source)?.offsets;
    for (const [offset, node] of this.spans) node.classList.toggle("used", Boolean(offsets?.has(offset)));
  }

  scrollTo(offset) {
    const node = this.spans.get(offset);
    if (node) this.body.scrollTop = node.offsetTop - this.body.clientHeight / 3;
  }

  // -- light from a token --------------------------------------------------------------------------

  /** Light the place of a token, or none; a pinned one is also gone to where it is not loaded. */
  light(token, pinned) {
    if ((token === this.token && pinned === this.isPinned) || !this.run) return undefined;
    this.token = token;
    this.isPinned = pinned;
    if (!token?.chip.o) return this.relight();
    const [number, offset] = token.chip.o;
    const name = this.run.copies.sources[number];
    const there = this.has(name, offset);
    if (name !== "output" && (there ? this.source !== name : pinned)) this.open(name, offset);
    this.relight();
    if (this.source === name) this.scrollTo(offset);
    return undefined;
  }

  relight() {
    for (const node of this.body.querySelectorAll(".lit, .chain, .matched")) node.classList.remove("lit", "chain", "matched");
    this.view.root.querySelectorAll(".c.source").forEach((node) => node.classList.remove("source"));
    const token = this.token;
    if (!token?.chip.o) return;
    const { name, start, length } = this.matchOf(token);
    const places = token.step.chips.filter((chip) => chip.o?.[0] === token.chip.o[0]).map((chip) => chip.o[1]);
    if (name === "output") return void this.lightOutput(token.chip.o[1]);
    if (this.source !== name) return;
    for (let offset = start - length; offset < start; offset += 1) this.spans.get(offset)?.classList.add("matched");
    for (const offset of places) this.spans.get(offset)?.classList.add("chain");
    this.spans.get(token.chip.o[1])?.classList.add("lit");
  }

  /** Where the copy that holds a token began, and how much before it matched. */
  matchOf(token) {
    let chip = token.chip;
    const drafted = token.step.drafted;
    while (chip.parent >= 0 && drafted[chip.parent].o?.[0] === chip.o[0] && drafted[chip.parent].o[1] === chip.o[1] - 1) chip = drafted[chip.parent];
    return { name: this.run.copies.sources[chip.o[0]], start: chip.o[1], length: chip.o[2] };
  }

  lightOutput(offset) {
    const emitted = this.view.lanes.speculative.stream.querySelectorAll(".c:not(.rejected):not(.untested)");
    emitted[offset]?.classList.add("source");
  }

  /** Beside the chosen token's story: from where it was copied. */
  tell(token) {
    this.origin.replaceChildren(...(token && this.run ? this.story(token) : []));
  }

  /** One sentence: from where, and behind which words. */
  story({ step, chip }) {
    if (hasNoDraft(step)) {
      return ["No draft in this pass: nothing to guess from, or nothing that matched."];
    }
    if (!chip.o) return [];
    const [number, offset, length] = chip.o;
    const source = this.run.copies.sources[number];
    const suffix = this.suffix({ step, chip });
    return [
      "Copied from ", el("b", { text: SOURCE_NAMES[source] ?? source, dir: "auto" }), `, token ${(offset + 1).toLocaleString("en")}, since `,
      length === 1 ? "the last token stands" : `the last ${length.toLocaleString("en")} tokens stand`, " before the copy there, too: ",
      el("q", { class: "sv-suffix", text: suffix, dir: "auto" }), ".",
    ];
  }

  /** The words that matched, as many as can be read at a glance: from the source, else from the lane. */
  suffix(token) {
    const { name, start, length } = this.matchOf(token);
    const most = Math.min(length, 24);
    const { from, tokens } = this.texts.get(name) ?? { from: 0, tokens: [] };
    const found = tokens.slice(Math.max(0, start - most - from), Math.max(0, start - from));
    const texts = found.length === most ? found : this.before(token.step, most);
    return `${texts.length < length ? "…" : ""}${texts.join("")}`;
  }

  /** The last tokens of the lane before a pass. */
  before(step, most) {
    const steps = this.run.steps.speculative;
    const texts = [];
    for (let index = steps.indexOf(step) - 1; index >= 0 && texts.length < most; index -= 1) {
      const emitted = steps[index].chips.filter((chip) => chip.kind !== "rejected" && chip.kind !== "untested");
      texts.unshift(...emitted.map((chip) => textOf(this.run, chip)));
    }
    return texts.slice(-most);
  }

  // -- light from the text -------------------------------------------------------------------------

  lightChips(offset) {
    this.view.root.querySelectorAll(".c.copied").forEach((node) => node.classList.remove("copied"));
    if (offset === null || !this.run) return;
    for (const token of this.run.copies.at(this.source, offset)) this.view.nodeOf(token)?.classList.add("copied");
  }

  choose(offset) {
    const [token] = this.run.copies.at(this.source, offset);
    const node = token && this.view.nodeOf(token);
    if (!node) return;
    this.view.pinned = node.svToken;
    this.view.showDetail();
    node.scrollIntoView({ block: "nearest" });
  }

  /** Arrows go from copied token to copied token, Enter chooses what was copied there. */
  key(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Enter" && this.cursor !== null) this.choose(this.cursor);
    else if (by && !event.shiftKey) this.move(by);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  move(by) {
    const offsets = [...this.spans.keys()].filter((offset) => this.run.copies.at(this.source, offset).length);
    if (!offsets.length) return;
    const at = offsets.indexOf(this.cursor);
    this.spans.get(this.cursor)?.classList.remove("cursor");
    this.cursor = offsets[at < 0 ? (by > 0 ? 0 : offsets.length - 1) : Math.max(0, Math.min(offsets.length - 1, at + by))];
    this.spans.get(this.cursor).classList.add("cursor");
    this.scrollTo(this.cursor);
    this.lightChips(this.cursor);
  }
}
