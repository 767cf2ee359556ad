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
    this.big.replaceChildren(...speedupSentence(speedup, run, ended ? "" : " so far"));
    const slow = speedup !== null && speedup !== undefined && Number(speedup.toFixed(2)) < 1;
    this.root.classList.toggle("slow", slow);
    const ours = run.rowAt("speculative", time);
    const plain = run.rowAt("baseline", time);
    const parts = [];
    if (run.alone && plain) parts.push(`${fixed(plain.tokens_per_s, 1)} tokens/s, the target alone`);
    if (ours && plain) parts.push(`${fixed(ours.tokens_per_s, 1)} against ${fixed(plain.tokens_per_s, 1)} tokens/s`);
    if (ours && ours.tested) parts.push(`${percent(ours.acceptance_rate)} of tested tokens accepted`);
    if (ours) parts.push(`${fixed(ours.tokens_per_pass)} tokens per target pass`);
    if (slow) parts.push("guessing costs more than it saves");
    const ahead = run.live ? "Both lanes are measured in turn, on the same machine." : run.note || "Press Run: both lanes are then measured in turn, on the same machine.";
    this.small.textContent = parts.join(" · ") || ahead;
    this.verdict.className = `sv-verdict ${ended ? run.end.verdict?.kind ?? "" : ""}`;
    this.verdict.textContent = ended ? run.end.verdict?.text ?? "" : "";
  }
}

/** `yet` is said of a speedup that the rest of the run may still change. */
function speedupSentence(speedup, run, yet) {
  if (speedup === null || speedup === undefined) {
    const begun = run.course.length > 0;
    const why = run.alone ? "no draft in this run" : !begun ? "nothing decoded yet" : run.live ? "measuring both lanes" : run.start?.config?.baseline === false ? "no baseline in this run" : "no baseline yet";
    return ["Speedup ", el("b", { text: NA }), `: ${why}`];
  }
  const number = el("b", { text: `${speedup.toFixed(2)}×` });
  if (speedup.toFixed(2) === "1.00") return [number, `: the same speed as the target alone${yet}`];
  if (speedup < 1) return [number, ` the speed${yet}: slower than the target alone`];
  return [number, ` faster than the target alone${yet}`];
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
    return { definition, root, value, unit, values };
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
      ...derived(run, time),
      ...prefixed("plain", run.rowAt("baseline", time)),
      ...run.rowAt("speculative", time),
      race_speedup: run.end && time >= run.duration ? run.end.speedup : run.speedupAt(time),
      prefill_s: (run.started.speculative ?? run.started.baseline)?.prefill_s,
    };
    for (const { definition, value, unit, values } of this.cards) {
      const inUnit = readable(definition, row[definition.field]);
      value.textContent = formatted(row[definition.field], inUnit.format);
      unit.textContent = inUnit.unit;
      unit.hidden = value.textContent === NA;
      values.textContent = filled(definition.values, row, inUnit, row[definition.field]);
    }
  }
}

const ROLLING = 16; // passes, as on the server

/** What follows from the rows of both lanes: the latest passes alone, and the costs c and v. */
function derived(run, time) {
  const end = run.countAt("speculative", time);
  const rows = run.steps.speculative.slice(Math.max(0, end - ROLLING - 1), end).map((step) => step.row);
  const [now, before, first] = [rows.at(-1), rows.at(-2), rows.length > ROLLING ? rows[0] : null];
  if (!now) return {};
  const plain = run.rowAt("baseline", time);
  const plainPass = plain ? plain.verify_s / plain.passes : run.started.speculative?.plain_pass_s;
  const over = (value, count) => (plainPass && count ? value / count / plainPass : null);
  return {
    step_accepted: now.accepted - (before?.accepted ?? 0),
    step_tested: now.tested - (before?.tested ?? 0),
    rolling_accepted: now.accepted - (first?.accepted ?? 0),
    rolling_tested: now.tested - (first?.tested ?? 0),
    overlap_sum: now.overlap === null ? null : now.overlap * now.tested,
    plain_pass_s: plainPass,
    cost_ratio: over(now.draft_s, now.drafted),
    verify_ratio: over(now.verify_s, now.passes),
  };
}

function prefixed(prefix, row) {
  return Object.fromEntries(Object.entries(row ?? {}).map(([name, value]) => [`${prefix}_${name}`, value]));
}

/** From one second on, a time in milliseconds is told in seconds. */
function readable({ format, unit }, value) {
  return format === "ms" && value >= 1 ? { format: "one", unit: "s" } : { format, unit };
}

function formatted(value, format) {
  if (value === null || value === undefined) return NA;
  if (format === "percent") return `${(value * 100).toFixed(1)}`;
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
