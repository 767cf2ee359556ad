// ---- The two lanes: tokens pass by pass, shown up to one lane time. ----

const FOLLOW_PX = 24; // about a line: closer to the bottom than this is at the bottom

class Lane {
  constructor(name, title, hint) {
    this.name = name;
    this.model = el("span", { class: "sv-model" });
    this.stats = el("span", { class: "sv-lanestats" });
    this.fill = el("i");
    this.track = el("div", { class: "sv-track", "aria-hidden": "true" }, this.fill);
    this.stream = el("div", {
      class: "sv-stream",
      role: "log",
      "aria-live": "off",
      "aria-label": `${title}: tokens`,
      tabindex: "0",
    });
    this.end = el("span", { class: "sv-end" });
    this.root = el(
      "section",
      { class: `sv-lane ${name}`, "aria-label": title },
      el(
        "header",
        {},
        el("h3", { text: title }),
        this.model,
        el("span", { class: "sv-hint", text: hint }),
        this.stats
      ),
      this.track,
      this.stream
    );
    this.stream.addEventListener("scroll", () => {
      this.following = this.stream.scrollHeight - this.stream.scrollTop - this.stream.clientHeight < FOLLOW_PX;
    });
    this.clear();
  }

  clear() {
    this.stream.replaceChildren(this.end);
    this.end.textContent = "";
    this.groups = [];
    this.shown = 0;
    this.following = true;
  }

  add(run, step) {
    const group = el("span", { class: branches(step) ? "g tree" : "g" });
    group.hidden = true;
    step.chips.forEach((chip, index) => {
      const node = chipNode(run, chip);
      node.svToken = { step, chip, index };
      group.append(node);
      const emitted = chip.kind !== "rejected" && chip.kind !== "untested";
      if (emitted && textOf(run, chip).endsWith("\n")) group.append(el("br", { class: "sv-br" }));
    });
    this.end.before(group);
    this.groups.push({ node: group, t: step.t });
  }

  /** Show what the lane's clock had reached at `time`. */
  show(time) {
    const before = this.shown;
    while (this.shown < this.groups.length && this.groups[this.shown].t <= time) {
      this.groups[this.shown++].node.hidden = false;
    }
    while (this.shown > 0 && this.groups[this.shown - 1].t > time) {
      this.groups[--this.shown].node.hidden = true;
    }
    if (before !== this.shown) {
      this.groups[before - 1]?.node.classList.remove("now");
      this.groups[this.shown - 1]?.node.classList.add("now");
    }
    return before !== this.shown;
  }

  describe(run, time, most) {
    const row = run.rowAt(this.name, time);
    const tokens = row?.tokens ?? 0;
    const end = time >= run.duration ? run.cutShort(this.name) : "";
    if (this.end.textContent !== end) this.end.textContent = end;
    this.fill.style.transform = `scaleX(${most ? Math.min(1, tokens / most) : 0})`;
    this.stats.replaceChildren(
      el("b", { text: row ? fixed(row.tokens_per_s, 1) : NA }),
      " tokens/s",
      el("span", { class: "sv-dim", text: ` · ${plural(tokens, "token")} in ${plural(row?.passes ?? 0, "pass")}` })
    );
  }

  /** To the newest token, unless the visitor has scrolled away from it to read. */
  follow() {
    if (this.following) this.stream.scrollTop = this.stream.scrollHeight;
  }

  /** Tell of a token that is clicked, and of one that the mouse is over, or null. */
  listen(onClick, onPoint) {
    this.stream.addEventListener("click", (event) => {
      const token = this.tokenAt(event.target);
      if (token) onClick(token);
    });
    this.stream.addEventListener("pointerover", (event) => {
      const token = this.tokenAt(event.target);
      if (token && event.pointerType === "mouse") onPoint(token);
    });
    this.stream.addEventListener("pointerleave", () => onPoint(null));
  }

  tokenAt(node) {
    return node.closest?.(".c")?.svToken ?? null;
  }

  nodes() {
    return [...this.stream.querySelectorAll(".g:not([hidden]) > .c")];
  }
}

/** What the visitor copies: real characters of emitted tokens, or of any token if only such are selected. */
function copiedText(run, selection) {
  const range = selection.rangeCount ? selection.getRangeAt(0) : null;
  const root = range?.commonAncestorContainer;
  const scope = root?.nodeType === Node.ELEMENT_NODE ? root : root?.parentElement;
  const stream = scope?.closest?.(".sv-stream");
  if (!stream) return null;
  const chosen = [...stream.querySelectorAll(".g:not([hidden]) > .c")].filter((node) => range.intersectsNode(node));
  if (chosen.length < 2) return null;
  const kept = chosen.filter((node) => !node.matches(".rejected, .untested"));
  const special = (node) => node.classList.contains("special");
  return (kept.length ? kept : chosen)
    .filter((node) => !special(node))
    .map((node) => textOf(run, node.svToken.chip))
    .join("");
}
