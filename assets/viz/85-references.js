// ---- Where copies came from: each source with what was used of it, and the story of a copied token. ----

class References {
  constructor(view, ask) {
    this.summary = el("p", { class: "sv-refsum" });
    this.list = el("div", { class: "sv-reflist" });
    this.text = new SourceText(view, ask, (name) => this.press(name));
    this.root = el(
      "section",
      { class: "sv-refs", "aria-label": "Where copies came from" },
      el("header", {}, el("h3", { text: "Where copies came from" }), this.summary),
      this.list,
      this.text.body,
      this.text.footer
    );
    this.root.hidden = true;
    this.origin = el("p", { class: "sv-origin" });
    this.whole = el("input", { type: "checkbox", "aria-label": "Include references in the saved trace" });
    this.wholeLabel = el("label", { class: "sv-whole", title: "Off: a saved trace holds only what was copied" }, this.whole, "include references");
  }

  /** The parts that stand elsewhere: in the chosen token's story and beside Save. */
  place(detail, tools) {
    detail.sentence.after(this.origin);
    tools.keep.at(-1).after(this.wholeLabel);
  }

  // -- one run, at one time ------------------------------------------------------------------------

  show(run, time) {
    if (run !== this.run) this.reset(run);
    const references = run.start?.references ?? [];
    this.root.hidden = !run.copies.sources.length && !references.length;
    this.wholeLabel.hidden = !references.some((one) => one.kept);
    if (this.root.hidden) return;
    const shown = run.countAt("speculative", time);
    if (shown === this.used.shown && this.drawn) return;
    if (shown < this.used.shown) this.used = new Used(run);
    for (const step of run.steps.speculative.slice(this.used.shown, shown)) this.used.add(step);
    this.used.shown = shown;
    this.drawn = true;
    this.draw();
  }

  reset(run) {
    this.run = run;
    this.used = new Used(run);
    this.rows = new Map();
    this.drawn = false;
    this.text.reset(run);
    this.list.replaceChildren();
    this.origin.replaceChildren();
  }

  draw() {
    const bare = !this.run.copies.anyAccepted && !this.run.start?.references?.length; // nothing to be seen in any text
    this.list.hidden = this.text.body.hidden = this.text.footer.hidden = bare;
    this.summary.textContent = this.inWords();
    this.text.show(this.used);
    if (bare) return;
    const sizes = shelfOf(this.run);
    for (const [name, size] of sizes) {
      if (!this.rows.has(name)) this.addRow(name);
      this.fillRow(name, size);
    }
    if (this.text.source === null) this.text.open([...sizes.keys()].find((name) => name !== "output") ?? null);
  }

  inWords() {
    const parts = [...this.used.bySource].map(([name, tally]) => [tally.accepted, SOURCE_NAMES[name] ?? name]).filter(([count]) => count);
    if (this.used.drawn) parts.push([this.used.drawn, "drafts that do not copy"]);
    parts.sort((a, b) => b[0] - a[0]);
    const accepted = parts.map(([count, name]) => `${count.toLocaleString("en")} from ${name}`).join(", ");
    const plain = this.used.plain ? ` No draft in ${this.used.plain.toLocaleString("en")} of ${plural(this.used.shown, "pass")}.` : "";
    return (accepted ? `Accepted: ${accepted}. The target's own: ${this.used.own.toLocaleString("en")}.` : "No copy accepted so far.") + plain;
  }

  addRow(name) {
    const bar = el("span", { class: "sv-refbar", "aria-hidden": "true" });
    const count = el("span", { class: "sv-refcount" });
    const button = el(
      "button",
      { type: "button", class: "sv-refrow", "aria-pressed": String(this.text.source === name), onclick: (event) => this.pick(name, event, bar) },
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
    count.textContent = size ? `${used.toLocaleString("en")} of ${plural(size, "token")} used` : `${plural(used, "different token")} used`;
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
    const size = shelfOf(this.run).get(name);
    const aimed = event.detail > 0 && size && share >= 0 && share <= 1;
    this.text.open(name, aimed ? Math.floor(share * size) : undefined);
  }

  /** Show which source is open. */
  press(name) {
    for (const [other, { button }] of this.rows) button.setAttribute("aria-pressed", String(other === name));
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
    const { name, start, length } = matchOf(this.run, token);
    const most = Math.min(length, 24);
    const found = this.text.tokensOf(name, start - most, start);
    const texts = found.length === most ? found : textsBefore(this.run, token.step, most);
    return `${texts.length < length ? "…" : ""}${texts.join("")}`;
  }
}
