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
    this.drafts = new Drafts();
    this.plots = new Plots(still.figures, still.plotly);
    this.onView = new OnView(still.settings);
    this.buttons = new RunButtons();
    this.deltas = new Deltas(this, ask);
    this.keys = new Keys(this);
    this.tools = new Tools(this, ask, still.max_file_chars);
    this.references = new References(this, ask);
    this.alert = new Alert();
    this.status = el("p", { class: "sv-status", role: "status", "aria-live": "polite" });
    this.say = atMostEvery(3000, () => this.announce());
    this.keepUp = atMostEvery(0, () => this.settle(), 0.5);
    this.build();
  }

  build() {
    this.root.replaceChildren(
      this.alert.root,
      el("div", { class: "sv-top-row" }, this.onView.source, this.tools.root),
      this.onView.promptBox,
      this.onView.stale,
      this.headline.root,
      legend(),
      this.lanes.speculative.root,
      this.lanes.baseline.root,
      this.references.root,
      this.transport.root,
      this.detail.root,
      this.numbers.root,
      this.drafts.root,
      this.plots.root,
      this.status,
      this.tools.help,
      this.tools.link
    );
    this.transport.label.before(toggles(this.root));
    this.references.place(this.detail, this.tools);
    this.drawNothing();
    this.root.tabIndex = -1;
    this.root.addEventListener("sv-pick", (event) => {
      this.pinned = this.nodeOf(event.detail)?.svToken ?? null;
      this.showDetail();
    });
    for (const lane of Object.values(this.lanes)) lane.listen((token) => this.pin(token), (token) => this.look(token));
    document.addEventListener("copy", (event) => this.copy(event));
    this.root.addEventListener("click", (event) => {
      if (!event.target.closest(".sv-card")) this.numbers.close();
    });
    this.tools.takeDropped(this.root);
    new MutationObserver(() => {
      this.transport.refresh();
      this.plots.draw();
    }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  }

  // -- runs --------------------------------------------------------------------------------------

  receive(delta) {
    this.deltas.receive(delta);
  }

  complain(sentence) {
    this.alert.say(sentence);
  }

  showLink(query, cut) {
    this.tools.showLink(query, cut);
  }

  /** Run was pressed with the controls at these values. Returns the id that the run is to have. */
  pressed(values) {
    if (!this.buttons.busy) this.madeWith = this.onView.asked(values);
    return this.buttons.pressed();
  }

  /** A press of Run that came to nothing. */
  refused() {
    if (this.buttons.state !== "waiting") return;
    this.complain("The run was not started: too many wait in line, or the server does not answer. Press Run again in a moment.");
    this.buttons.over();
  }

  /** The controls have these values now. */
  settings(values) {
    this.onView.settings(values, this.run);
  }

  /** The visitor's references are these now. */
  brought(documents) {
    this.onView.brought(documents, this.run);
  }

  open(delta) {
    this.before = this.run?.course.length ? this.run : null;
    this.run = new Run(delta.run, this.still.fields);
    this.run.settings = delta.run === this.buttons.ticket ? this.madeWith : null;
    this.pinned = null;
    this.hovered = null;
    for (const lane of Object.values(this.lanes)) lane.clear();
    this.transport.load(this.run, { live: delta.phase === "loading" || delta.phase === "running" });
  }

  /** The run before is shown again. */
  goBack() {
    this.run = this.before;
    this.before = null;
    for (const lane of LANES) {
      this.lanes[lane].clear();
      for (const step of this.run.steps[lane]) this.lanes[lane].add(this.run, step);
    }
    this.transport.load(this.run, { live: false });
    this.transport.seek(this.run.duration);
  }

  take(applied) {
    for (const delta of applied) {
      for (const event of delta.events) {
        if (event.kind === "step") this.lanes[event.lane].add(this.run, event);
      }
    }
    this.buttons.heard(this.run);
    if (this.run.live) this.keepUp();
    else this.settle();
  }

  settle() {
    this.transport.grew();
    this.root.classList.toggle("is-live", this.run.live);
    document.body.classList.toggle("sv-decoding", this.run.live && this.run.course.length > 0);
    this.render();
    this.say();
  }

  // -- drawing ---------------------------------------------------------------------------------

  /** Before there is a run: what each part is for. */
  drawNothing() {
    const nothing = new Run("", this.still.fields);
    nothing.phase = "done";
    this.headline.show(nothing, 0);
    this.numbers.show(nothing, 0);
    this.detail.clear(null);
    this.tools.show(null);
  }

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
    this.drafts.show(run, time);
    this.plots.show(run, time);
    this.onView.show(run);
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
    this.references.text.light(looked, looked === this.pinned);
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

  /** True where one was pinned. */
  unpin() {
    if (!this.pinned) return false;
    this.pin(this.pinned);
    return true;
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

// -- start -------------------------------------------------------------------------------------

const still = JSON.parse(props.still);
const view = new View(element.querySelector(".sv"), still, server);
view.root.svView = view;
if (window.svSettings) view.settings(window.svSettings);
setInterval(() => view.deltas.check(), 1000);
whenThere(".sv-library", 1, () => {
  const beside = document.querySelector(".sv-library");
  beside.svLibrary = new Library(beside, server, still.sets, still.max_reference_bytes, (documents) => view.brought(documents));
});
whenThere("#progress", 1, () => new Waiting(document.getElementById("progress"), () => view.refused()));
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
