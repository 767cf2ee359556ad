// ---- Headline, verdict and the table of numbers, each with its definition and this run's values. ----

class Headline {
  constructor() {
    this.big = el("p", { class: "sv-big" });
    this.small = el("p", { class: "sv-small" });
    this.verdict = el("p", { class: "sv-verdict" });
    this.root = el("div", { class: "sv-headline" }, this.big, this.small, this.verdict);
  }

  show(run, time) {
    const ended = run.end && time >= run.duration;
    const speedup = ended ? run.end.speedup : run.speedupAt(time);
    this.big.replaceChildren(...speedupSentence(speedup, run));
    this.root.classList.toggle("slow", speedup !== null && speedup < 1);
    const ours = run.rowAt("speculative", time);
    const plain = run.rowAt("baseline", time);
    const parts = [];
    if (ours && plain) parts.push(`${fixed(ours.tokens_per_s, 1)} against ${fixed(plain.tokens_per_s, 1)} tokens/s`);
    if (ours && ours.tested) parts.push(`${percent(ours.acceptance_rate)} of tested tokens accepted`);
    if (ours) parts.push(`${fixed(ours.tokens_per_pass)} tokens per target pass`);
    if (speedup !== null && speedup !== undefined && speedup < 1) parts.push("guessing costs more than it saves");
    this.small.textContent = parts.join(" · ") || "Both lanes are measured while they run, in turn, on the same machine.";
    this.verdict.className = `sv-verdict ${ended ? run.end.verdict?.kind ?? "" : ""}`;
    this.verdict.textContent = ended ? run.end.verdict?.text ?? "" : "";
  }
}

function speedupSentence(speedup, run) {
  if (speedup === null || speedup === undefined) {
    const begun = run.course.length > 0;
    const why = run.live ? (begun ? "measuring both lanes" : "nothing decoded yet") : run.start?.config?.baseline === false ? "no baseline in this run" : "no baseline yet";
    return ["Speedup ", el("b", { text: NA }), `: ${why}`];
  }
  const number = el("b", { text: `${speedup.toFixed(2)}×` });
  if (speedup < 1) return [number, " the speed: slower than the target alone"];
  return [number, " faster than the target alone"];
}

class Numbers {
  constructor(definitions) {
    this.cards = definitions.map((definition) => this.card(definition));
    this.root = el("section", { class: "sv-numbers", "aria-label": "Numbers" }, ...this.cards.map((card) => card.root));
  }

  card(definition) {
    const value = el("output", { class: "value" });
    const unit = el("span", { class: "unit", text: definition.unit });
    const formula = el("p", { class: "formula", text: definition.formula });
    const values = el("p", { class: "values" });
    const more = el("div", { class: "sv-more", id: `sv-more-${definition.key}` }, el("p", { text: definition.what }), formula, values);
    more.hidden = true;
    const info = el("button", {
      type: "button", class: "sv-info", text: "i", "aria-expanded": "false", "aria-controls": more.id,
      "aria-label": `What is ${definition.label}?`,
      onclick: () => this.toggle({ more, info }),
    });
    const root = el("div", { class: "sv-card", "data-key": definition.key },
      el("div", { class: "label" }, el("span", { text: definition.label }), info),
      el("div", {}, value, unit), more);
    return { definition, root, value, values };
  }

  /** One explanation at a time, beside its number and inside the page. */
  toggle(explained) {
    const wasOpen = !explained.more.hidden;
    this.close();
    if (wasOpen) return;
    const { more, info } = explained;
    this.open = explained;
    more.hidden = false;
    info.setAttribute("aria-expanded", "true");
    more.classList.remove("flip");
    more.classList.toggle("flip", more.getBoundingClientRect().right > this.root.getBoundingClientRect().right + 1);
  }

  /** True where one was open. */
  close() {
    if (!this.open) return false;
    this.open.more.hidden = true;
    this.open.info.setAttribute("aria-expanded", "false");
    this.open = null;
    return true;
  }

  show(run, time) {
    const row = {
      ...prefixed("plain", run.rowAt("baseline", time)),
      ...run.rowAt("speculative", time),
      race_speedup: run.end && time >= run.duration ? run.end.speedup : run.speedupAt(time),
      prefill_s: run.started.speculative?.prefill_s,
    };
    for (const { definition, value, values } of this.cards) {
      value.textContent = formatted(row[definition.field], definition.format);
      values.textContent = filled(definition.values, row, definition, row[definition.field]);
    }
  }
}

function prefixed(prefix, row) {
  return Object.fromEntries(Object.entries(row ?? {}).map(([name, value]) => [`${prefix}_${name}`, value]));
}

function formatted(value, format) {
  if (value === null || value === undefined) return NA;
  if (format === "percent") return `${(value * 100).toFixed(1)}`;
  if (format === "count") return value.toLocaleString("en");
  if (format === "ms") return (value * 1000).toFixed(1);
  if (format === "times") return value.toFixed(2);
  return value.toFixed(format === "one" ? 1 : 2);
}

/** `{accepted} ÷ {tested}` with this run's values in it. */
function filled(template, row, { format, unit }, result) {
  const text = template.replace(/\{(\w+)\}/g, (_, name) => {
    const value = row[name];
    if (value === null || value === undefined) return NA;
    return Number.isInteger(value) ? value.toLocaleString("en") : Number(value.toPrecision(4)).toString();
  });
  return text && `${text} = ${formatted(result, format)}${result === null || result === undefined || !unit ? "" : ` ${unit}`}`;
}
