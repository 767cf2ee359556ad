// ---- What is on view: where the run comes from, its prompt, and whether the settings are still those it was made with. ----

const SOURCES = { live: "live run", recorded: "recorded run", imported: "imported trace" };

class OnView {
  /** `labels` are the names of the controls, in the order in which their values come. */
  constructor(labels) {
    this.labels = [...labels, "Reference list"];
    this.controls = null; // their values as they are
    this.references = "[]";
    this.source = el("p", { class: "sv-source" });
    this.whose = el("b");
    this.prompt = el("span", { class: "sv-prompttext", dir: "auto" });
    this.promptBox = el("details", { class: "sv-prompt" }, el("summary", { title: "Show all of it, or one line" }, this.whose, this.prompt));
    this.stale = el("p", { class: "sv-stale", role: "status" });
    this.promptBox.hidden = this.stale.hidden = true;
  }

  show(run) {
    const source = run.start?.source ?? "live";
    this.source.replaceChildren(...sourceLine(run, source));
    this.tellPrompt(run, source);
    this.compare(run);
  }

  /** Until the run itself says it, the prompt that it was asked for with. */
  tellPrompt(run, source) {
    const prompt = run.start ? run.start.config.prompt : run.settings?.[this.labels.indexOf("Prompt")];
    this.promptBox.hidden = prompt === undefined;
    if (this.told === run && this.toldPrompt === prompt) return;
    Object.assign(this, { told: run, toldPrompt: prompt });
    this.whose.textContent = source === "live" ? "Prompt" : `Prompt of the ${SOURCES[source]}`;
    this.prompt.textContent = prompt || "none is named in the trace";
    this.prompt.classList.toggle("none", !prompt);
  }

  /** The controls have these values now. */
  settings(values, run) {
    this.controls = asTexts(values);
    if (run) this.compare(run);
  }

  /** The visitor's references are these now. */
  brought(documents, run) {
    this.references = JSON.stringify(documents.map(({ name, bytes, in_prompt }) => [name, bytes, in_prompt]));
    if (run) this.compare(run);
  }

  /** What a run is made with: these values of the controls, and the references as they are. */
  asked(values) {
    return [...asTexts(values), this.references];
  }

  get values() {
    return this.controls && [...this.controls, this.references];
  }

  /** A run made with other settings than the controls have now must not be taken for theirs. */
  compare(run) {
    const { values } = this;
    if (values) run.settings ??= values;
    const changed = this.labels.filter((_, index) => values && values[index] !== run.settings[index]);
    const sentence = changed.length ? staleSentence(run.start?.source ?? "live", changed) : "";
    if (this.stale.textContent !== sentence) this.stale.textContent = sentence;
    this.stale.hidden = !sentence;
    return changed.length > 0;
  }
}

function staleSentence(source, changed) {
  const names = changed.length > 3 ? [...changed.slice(0, 2), `${changed.length - 2} more`] : changed;
  const list = names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names[0];
  const have = changed.length > 1 ? "have" : "has";
  if (source !== "live") return isLinked() && source === "recorded" ? "" : `This is still the ${SOURCES[source]}, not made with your settings (changed: ${list}). Press Run to decode with them.`;
  return `Made with older settings: ${list} ${have} been changed since. Press Run to decode with the new ones.`;
}

function sourceLine(run, source) {
  const end = run.phase === "error" ? ", broken off" : run.wasStopped ? ", stopped" : "";
  const label = run.live ? "live" : `${SOURCES[source]}${end}`;
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
  return isLinked() ? "the link has filled in the settings: press Run" : "press Run to decode here";
}

function isLinked() {
  return new URLSearchParams(window.location.search).has("prompt");
}

/** What was run on what, in one line. */
function runFacts(run) {
  const started = run.started.speculative ?? run.started.baseline;
  const config = run.start?.config;
  if (!started || !config) return "";
  const length = config.copy_len ? `copy length ${config.copy_len}` : `γ ${config.draft_len ?? NA}`;
  const shape = config.tree ? `tree ${config.tree}` : length;
  const rule = config.rule === "naive" ? "naive rule, for teaching" : "standard rule";
  const facts = [`temperature ${config.temperature ?? NA}`, shape, rule, `seed ${started.seed}`];
  return `${facts.join(", ")}, ${started.dtype} on ${started.device}`;
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
