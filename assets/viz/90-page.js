// ---- The page: builds the view once, feeds it deltas, and keeps all parts on one lane time. ----

class View {
  constructor(root, still, ask) {
    this.still = still; // what never changes: fields, definitions of numbers, figures
    this.ask = ask; // functions of the server
    this.root = root;
    this.run = null;
    this.pinned = null;
    this.headline = new Headline();
    this.lanes = {
      speculative: new Lane("speculative", "Target with draft", ""),
      baseline: new Lane("baseline", "Target alone", "one pass, one token"),
    };
    this.transport = new Transport(() => this.render());
    this.detail = new Detail();
    this.numbers = new Numbers(still.numbers);
    this.plots = new Plots(still.figures, still.plotly);
    this.tools = new Tools(this, ask, still.max_file_chars);
    this.references = new References(this, ask);
    this.status = el("p", { class: "sv-status", role: "status", "aria-live": "polite" });
    this.source = el("p", { class: "sv-source" });
    this.alert = el("p", { class: "sv-alert", role: "alert" });
    this.alert.hidden = true;
    this.say = atMostEvery(3000, () => this.announce());
    this.build();
  }

  build() {
    this.root.replaceChildren(
      this.alert,
      el("div", { class: "sv-top-row" }, this.source, this.tools.root),
      this.headline.root,
      this.legend(),
      this.lanes.speculative.root,
      this.lanes.baseline.root,
      this.references.root,
      this.transport.root,
      this.detail.root,
      this.numbers.root,
      this.plots.root,
      this.status,
      this.tools.help,
      this.tools.link
    );
    this.transport.label.before(this.toggles());
    this.references.place(this.detail, this.tools);
    this.root.tabIndex = -1;
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.root.addEventListener("sv-pick", (event) => {
      this.pinned = this.nodeOf(event.detail)?.svToken ?? null;
      this.showDetail();
    });
    for (const lane of Object.values(this.lanes)) this.listen(lane.stream, lane);
    document.addEventListener("copy", (event) => this.copy(event));
    document.addEventListener("keydown", (event) => {
      if (event.key === "?" && event.target === document.body) this.tools.help.showModal();
    });
    this.root.addEventListener("click", (event) => {
      if (!event.target.closest(".sv-card")) this.numbers.close();
    });
    this.root.addEventListener("dragover", (event) => event.preventDefault());
    this.root.addEventListener("drop", (event) => {
      event.preventDefault();
      if (event.dataTransfer.files[0]) this.tools.openFile(event.dataTransfer.files[0]);
    });
    new ResizeObserver(() => this.transport.refresh()).observe(this.root);
    new MutationObserver(() => {
      this.transport.refresh();
      this.plots.draw();
    }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  }

  legend() {
    const entry = (kind, text) =>
      el("li", { title: text }, el("span", { class: `c ${kind}`, "data-tag": TAGS[kind], text: kind }), el("span", { text }));
    return el(
      "div",
      { class: "sv-legend" },
      el(
        "ul",
        { "aria-label": "What the colours mean" },
        entry("accepted", "guessed right"),
        entry("rejected", "guessed wrong"),
        entry("corrected", "the target's instead"),
        entry("bonus", "the target's extra"),
        entry("untested", "not tested")
      )
    );
  }

  toggles() {
    const toggle = (label, name, on) => {
      const box = el("input", { type: "checkbox", checked: on, onchange: () => this.root.classList.toggle(name, box.checked !== on) });
      return el("label", {}, box, label);
    };
    return el("div", { class: "sv-toggles" }, toggle("rejected tokens", "hide-rejected", true), toggle("spaces", "show-spaces", false));
  }

  listen(stream, lane) {
    stream.addEventListener("click", (event) => {
      const token = lane.tokenAt(event.target);
      if (token) this.pin(token);
    });
    stream.addEventListener("pointerover", (event) => {
      const token = lane.tokenAt(event.target);
      if (token && event.pointerType === "mouse") this.look(token);
    });
    stream.addEventListener("pointerleave", () => this.look(null));
  }

  // -- deltas ----------------------------------------------------------------------------------

  receive(delta) {
    if (!delta || !delta.run) return;
    this.complain((delta.phase === "error" ? delta.note : delta.warning) ?? "");
    if (this.run?.id !== delta.run) {
      if (delta.seq !== 0 && this.stale?.has(delta.run)) return;
      this.open(delta);
    }
    this.take(this.run.accept(delta));
    if (this.run.phase === "error" && !this.run.course.length && this.before) this.goBack();
    if (this.run.gap()) this.fill(this.run.gap());
  }

  complain(sentence) {
    this.alert.hidden = !sentence;
    this.alert.textContent = sentence;
  }

  showLink(query, cut) {
    this.tools.showLink(query, cut);
  }

  /** A run that was refused before it began leaves what was shown. */
  goBack() {
    this.stale.add(this.run.id);
    this.run = this.before;
    this.before = null;
    for (const lane of LANES) {
      this.lanes[lane].clear();
      for (const step of this.run.steps[lane]) this.lanes[lane].add(this.run, step);
    }
    this.transport.load(this.run, { live: false });
    this.transport.seek(this.run.duration);
  }

  open(delta) {
    this.stale ??= new Set();
    if (this.run) this.stale.add(this.run.id);
    this.before = this.run?.course.length ? this.run : null;
    this.run = new Run(delta.run, this.still.fields);
    this.heard = performance.now();
    this.pinned = null;
    this.hovered = null;
    for (const lane of Object.values(this.lanes)) lane.clear();
    this.transport.load(this.run, { live: delta.phase === "loading" || delta.phase === "running" });
  }

  async fill(gap) {
    if (this.filling) return;
    this.filling = true;
    try {
      const missed = await answered(this.ask.missing(gap));
      if (missed === null && gap.run === this.run.id && this.run.live) this.lost("The server no longer knows this run, perhaps because it was started anew");
      for (const delta of missed ?? []) {
        if (delta.run === this.run.id) this.take(this.run.accept(delta));
      }
    } catch {
      if (gap.run === this.run.id && this.run.live) this.lost();
    } finally {
      this.filling = false;
    }
  }

  /** A live run that has not been heard of for a while: is there more, or nobody any more? */
  check() {
    if (!this.run?.live || performance.now() - this.heard < SILENCE_MS) return;
    this.heard = performance.now();
    this.fill({ run: this.run.id, from: this.run.next, to: this.run.next + 400 });
  }

  lost(why = "The server no longer answers") {
    this.run.phase = "error";
    this.run.note = `${why}, so this run ends here; what has come stays. Run starts another once it is back.`;
    this.complain(this.run.note);
    this.settle();
  }

  take(applied) {
    if (!applied.length) return;
    this.heard = performance.now();
    for (const delta of applied) {
      for (const event of delta.events) {
        if (event.kind === "step") this.lanes[event.lane].add(this.run, event);
      }
    }
    this.transport.grew();
    this.settle();
  }

  settle() {
    this.root.classList.toggle("is-live", this.run.live);
    document.body.classList.toggle("sv-running", this.run.live && this.run.course.length > 0);
    this.render();
    this.say();
  }

  // -- drawing ---------------------------------------------------------------------------------

  render() {
    const { run, transport } = this;
    if (!run) return;
    const time = transport.time;
    const most = Math.max(1, run.live ? run.start?.config.max_new_tokens ?? 0 : 0, ...LANES.map((lane) => run.steps[lane].at(-1)?.row.tokens ?? 0));
    for (const lane of LANES) {
      const view = this.lanes[lane];
      if (view.show(time)) view.follow();
      view.describe(run, time, most);
      view.root.hidden = lane === "baseline" ? run.start?.config?.baseline === false && !run.alone : run.alone;
      view.model.textContent = modelNames(run, lane);
    }
    this.headline.show(run, time);
    this.numbers.show(run, time);
    this.plots.show(run, time);
    this.source.replaceChildren(...sourceLine(run));
    this.tools.show(run);
    this.references.show(run, time);
    this.showDetail();
  }

  showDetail() {
    const token = this.hovered ?? this.pinned ?? this.latestRejected();
    if (token !== this.detailed || !token) {
      this.detail.show(this.run, token);
      this.detailed = token;
      this.root.querySelectorAll(".c.chosen").forEach((node) => node.classList.remove("chosen"));
      if (token) this.nodeOf(token)?.classList.add("chosen");
      this.references.tell(token);
    }
    const looked = this.hovered ?? this.pinned;
    this.references.light(looked, looked === this.pinned);
  }

  nodeOf({ step, index }) {
    const group = this.lanes[step.lane].groups[this.run.steps[step.lane].indexOf(step)];
    return group?.node.querySelectorAll(":scope > .c")[index];
  }

  latestRejected() {
    const steps = this.run.steps.speculative;
    const shown = this.run.countAt("speculative", this.transport.time);
    for (let index = shown - 1; index >= 0; index -= 1) {
      const at = steps[index].chips.findIndex((chip) => chip.kind === "rejected");
      if (at >= 0) return this.nodeOf({ step: steps[index], index: at })?.svToken ?? null;
    }
    const last = steps[shown - 1] ?? this.run.steps.baseline[this.run.countAt("baseline", this.transport.time) - 1];
    return last ? this.nodeOf({ step: last, index: last.chips.length - 1 })?.svToken ?? null : null;
  }

  pin(token) {
    this.pinned = this.pinned === token ? null : token;
    this.showDetail();
  }

  look(token) {
    this.hovered = token;
    this.showDetail();
  }

  announce() {
    const row = this.run?.rowAt(this.run.alone ? "baseline" : "speculative", this.run.duration);
    if (!row) return;
    const rate = row.tested ? `, ${percent(row.acceptance_rate)} of tested tokens accepted` : "";
    this.status.textContent = this.run.live ? `${plural(row.tokens, "token")}${rate}` : `${this.run.note || "Finished."} ${plural(row.tokens, "token")}${rate}`;
  }

  // -- keyboard and clipboard --------------------------------------------------------------------

  key(event) {
    if (event.target.closest("input:not([type=range]), textarea, select, dialog, [contenteditable]")) return;
    const typed = "[]?".includes(event.key) && (event.altKey || event.getModifierState("AltGraph")); // so on many keyboards
    if (event.metaKey || ((event.ctrlKey || event.altKey) && !typed)) return;
    const { transport } = this;
    const onButton = event.target.closest("button");
    const actions = {
      " ": () => (onButton ? false : transport.toggle()),
      ArrowRight: () => (event.shiftKey ? this.move(1) : transport.step(1)),
      ArrowLeft: () => (event.shiftKey ? this.move(-1) : transport.step(-1)),
      Home: () => transport.seek(0),
      End: () => transport.toEnd(),
      "[": () => transport.changeSpeed(-1),
      "]": () => transport.changeSpeed(1),
      x: () => transport.nextRejection(),
      Escape: () => this.numbers.close() || (this.pinned ? this.pin(this.pinned) : false),
      "?": () => this.tools.help.showModal(),
    };
    const action = actions[event.key === "X" ? "x" : event.key];
    if (action && action() !== false) event.preventDefault();
  }

  /** Choose the token before or after the one whose story is told. */
  move(by) {
    const lane = this.lanes[this.detailed?.step.lane ?? "speculative"];
    const nodes = lane.nodes();
    const at = nodes.findIndex((node) => node.svToken === this.detailed);
    const node = nodes[Math.max(0, Math.min(nodes.length - 1, at + by))];
    if (!node) return;
    this.pinned = node.svToken;
    this.showDetail();
    node.scrollIntoView({ block: "nearest" });
  }

  copy(event) {
    const text = this.run && copiedText(this.run, document.getSelection());
    if (text === null || text === undefined || text === false) return;
    event.clipboardData.setData("text/plain", text);
    event.preventDefault();
  }
}

function modelNames(run, lane) {
  const started = run.started[lane];
  if (!started) return "";
  const target = shortName(started.target);
  return lane === "baseline" ? target : `${target} + ${started.proposers.map(shortName).join(", ") || "no draft"}`;
}

function shortName(name) {
  return name.split(/[\\/]/).pop();
}

function sourceLine(run) {
  const source = run.start?.source ?? "live";
  const label = run.live ? "live" : { live: "live run", recorded: "recorded run", imported: "imported trace" }[source];
  const waiting = run.live && !run.course.length ? run.note : null;
  const facts = [runFacts(run), run.start?.title].filter(Boolean).join(" · ");
  const now = [waiting, run.live ? null : hint(source)].filter(Boolean).join(" · ");
  return [
    el("b", { class: `sv-tag ${source} ${run.phase}`, text: label }),
    el("span", { text: now }),
    el("span", { class: "sv-runfacts", text: facts, title: facts }),
  ];
}

/** What to do next, for somebody who has just come. */
function hint(source) {
  if (source !== "recorded") return null;
  const linked = new URLSearchParams(window.location.search).has("prompt");
  return linked ? "the link has filled in the settings: press Run" : "press Run to decode here";
}

/** What was run on what, in one line. */
function runFacts(run) {
  const started = run.started.speculative ?? run.started.baseline;
  const config = run.start?.config;
  if (!started || !config) return "";
  const copied = config.copy_len ? `copy length ${config.copy_len}` : `γ ${config.draft_len ?? NA}`;
  const shape = config.tree ? `tree ${config.tree}` : copied;
  const rule = config.rule === "naive" ? "naive rule, for teaching" : "standard rule";
  const facts = [`temperature ${config.temperature ?? NA}`, shape, rule, `seed ${started.seed}`];
  return `${facts.join(", ")}, ${started.dtype} on ${started.device}`;
}

const SILENCE_MS = 5000;

// -- start -------------------------------------------------------------------------------------

const still = JSON.parse(props.still);
const view = new View(element.querySelector(".sv"), still, server);
view.root.svView = view;
setInterval(() => view.check(), 1000);
const beside = document.querySelector(".sv-library");
if (beside) beside.svLibrary = new Library(beside, server, still.sets, still.max_reference_bytes);
const progress = document.getElementById("progress");
if (progress) new Waiting(progress);
const hear = () => {
  try {
    view.receive(JSON.parse(props.value || "null"));
  } catch (error) {
    console.error("specviz: a delta could not be shown", error);
  }
};
watch("value", hear);
hear();
if (view.run) view.transport.begin();
(window.requestIdleCallback ?? setTimeout)(() => view.plots.start());
