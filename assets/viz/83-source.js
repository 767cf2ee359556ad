// ---- The text of one source, in parts: what was used of it, lit from its tokens, and its tokens lit from it. ----

const MOST_TOKENS = 1500; // of a source on the page at once

class SourceText {
  /** `opened` is told the name of each source that is opened. */
  constructor(view, ask, opened) {
    this.view = view;
    this.ask = ask;
    this.opened = opened;
    this.where = el("p", { class: "sv-refwhere" });
    this.earlier = el("button", { type: "button", class: "sv-btn wide", text: "Earlier", onclick: () => this.turn(-1) });
    this.later = el("button", { type: "button", class: "sv-btn wide", text: "Later", onclick: () => this.turn(1) });
    this.body = el("div", { class: "sv-refbody", tabindex: "0", role: "group", "aria-label": "The source's text: arrows go from copy to copy, Enter chooses the token", dir: "auto" });
    this.footer = el("footer", {}, this.where, this.earlier, this.later);
    this.listen();
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

  reset(run) {
    this.run = run;
    this.texts = new Map();
    this.source = null;
    this.spans = new Map();
    this.cursor = null;
    this.token = undefined;
    this.body.replaceChildren();
  }

  /** What has been used by now. */
  show(used) {
    this.used = used;
    if (this.source !== null) this.mark();
  }

  /** The tokens `from` to `to` of a source, as far as they are here. */
  tokensOf(name, first, last) {
    const { from, tokens } = this.texts.get(name) ?? { from: 0, tokens: [] };
    return tokens.slice(Math.max(0, first - from), Math.max(0, last - from));
  }

  // -- its parts -----------------------------------------------------------------------------------

  /** Open a source with the token `focus` in the part that is shown, scrolled to the token `aim`. */
  open(name, focus, aim = focus) {
    this.source = name;
    this.cursor = null;
    this.opened(name);
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
    const size = shelfOf(this.run).get(this.source) ?? 0;
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
    const size = shelfOf(this.run).get(this.source);
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
    const { name, start, length } = matchOf(this.run, token);
    const places = token.step.chips.filter((chip) => chip.o?.[0] === token.chip.o[0]).map((chip) => chip.o[1]);
    if (name === "output") return void this.lightOutput(token.chip.o[1]);
    if (this.source !== name) return;
    for (let offset = start - length; offset < start; offset += 1) this.spans.get(offset)?.classList.add("matched");
    for (const offset of places) this.spans.get(offset)?.classList.add("chain");
    this.spans.get(token.chip.o[1])?.classList.add("lit");
  }

  lightOutput(offset) {
    const emitted = this.view.lanes.speculative.stream.querySelectorAll(".c:not(.rejected):not(.untested)");
    emitted[offset]?.classList.add("source");
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
