// ---- Why a token met its fate: one sentence, the throw as a picture, and the candidates. ----

class Detail {
  constructor() {
    this.title = el("h3");
    this.sentence = el("p", { class: "sv-why" });
    this.throwBox = el("div", { class: "sv-throw" });
    this.facts = el("dl", { class: "sv-facts" });
    this.tops = el("div", { class: "sv-tops" });
    this.tree = new TreeView();
    this.root = el(
      "section",
      { class: "sv-detail", "aria-label": "The chosen token" },
      el("div", {}, this.title, this.sentence, this.throwBox, this.facts),
      this.tops,
      this.tree.root
    );
  }

  clear(run) {
    this.title.textContent = "No token yet";
    this.sentence.textContent = run?.live
      ? "The first pass will show here why a token was kept or rejected."
      : "Click or point at a token of a run, and it is told here why it was kept or rejected.";
    for (const node of [this.throwBox, this.facts, this.tops]) node.replaceChildren();
  }

  show(run, token) {
    this.tree.show(run, token);
    if (!token) return this.clear(run);
    const { step, chip } = token;
    this.title.replaceChildren(inlineToken(run, chip), ` ${FATES[chip.kind]}`, el("small", { text: ` pass ${step.i + 1}` }));
    this.sentence.replaceChildren(...explain(run, step, chip));
    this.throwBox.replaceChildren(...throwPicture(run, chip));
    this.facts.replaceChildren(
      ...facts(run, step, chip).map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: value })))
    );
    this.tops.replaceChildren(...this.lists(run, step, chip));
    return undefined;
  }

  lists(run, step, chip) {
    const site = step.sites[chip.site];
    if (!site) return [];
    const greedy = run.greedy;
    const whose = site.t?.length > 1 ? "of the draft that was tried first here" : greedy ? "the first is guessed" : "what the draft drew from";
    return [
      ["p_target", greedy ? "as at temperature 1; the first is taken" : "what the target wants here", site.p, "p"],
      ["q_draft", greedy ? `as at temperature 1; ${whose}` : whose, site.q, "q"],
      ["residual", greedy ? "only the first choice is left" : "p − q where positive, scaled to 1", site.r, "r"],
    ]
      .filter(([, , top]) => top.length)
      .map(([name, hint, top, kind]) => topList(run, name, hint, top, kind, chip.id));
  }
}

function topList(run, name, hint, top, kind, chosen) {
  const rows = top.slice(0, 6).map(([id, probability]) => {
    const bar = el("i", { class: `bar ${kind}` });
    bar.style.width = `${Math.max(0.5, probability * 100)}%`;
    return el(
      "li",
      { class: id === chosen ? "chosen" : "" },
      el("span", { class: "name" }, chipNode(run, candidate(id))),
      el("span", { class: "barbox" }, bar),
      el("span", { class: "value", text: prob(probability) })
    );
  });
  return el("div", { class: "sv-top" }, el("h4", { text: name }), el("p", { text: hint }), el("ol", {}, ...rows));
}

/** The unit interval: the part that accepts, and where the draw fell. */
function throwPicture(run, chip) {
  if (run.greedy || run.naive || chip.node === undefined || chip.u === undefined) return [];
  const accept = el("i", { class: "accept" });
  accept.style.width = `${chip.a * 100}%`;
  const tick = el("i", { class: `draw ${chip.kind}` });
  tick.style.left = `${chip.u * 100}%`;
  return [
    el("div", { class: "scale", role: "img", "aria-label": `accept below ${prob(chip.a)}, drawn ${prob(chip.u)}` }, accept, tick),
    el(
      "div",
      { class: "key" },
      el("span", { text: "0" }),
      el("span", { text: `kept if the draw u falls in the first ${percent(chip.a, chip.a < 0.1 ? 1 : 0)}` }),
      el("span", { text: "1" })
    ),
  ];
}

function facts(run, step, chip) {
  return [...guessedBy(run, step, chip), ...figuresOf(run, step, chip)];
}

/** Only where there is more than one who could have guessed it. */
function guessedBy(run, step, chip) {
  const names = run.started[step.lane]?.proposers ?? [];
  if (chip.node === undefined || names.length < 2) return [];
  return [["guessed by", (chip.by ?? [0]).map((index) => shortName(names[index])).join(" and ")]];
}

function figuresOf(run, step, chip) {
  if (chip.kind === "untested") return [["q_draft", prob(chip.q)]];
  if (run.greedy) return greedyFacts(step, chip);
  const drafted = chip.node !== undefined;
  const rows = [["p_target", prob(chip.p)]];
  if (drafted) {
    rows.push(["q_draft", prob(chip.q)]);
    if (chip.cur !== chip.p) rows.push(["left of p", prob(chip.cur)]);
    rows.push(["acceptance probability", prob(chip.a)]);
  }
  rows.push(["draw u", prob(chip.u)]);
  if (!drafted) rows.push(["its interval", `${prob(chip.low)} to ${prob(chip.high)}`]);
  if (chip.kind === "corrected") rows.push(["mass left of p", prob(chip.mass)]);
  rows.push(["rank for the target", `${chip.rank}`]);
  return rows;
}

/** At temperature 0 the rule sees only first choices; the probabilities are those before sharpening. */
function greedyFacts(step, chip) {
  const of = (top) => top?.find(([id]) => id === chip.id)?.[1];
  const site = step.sites[chip.site];
  const least = site?.p.at(-1)?.[1];
  const p = of(site?.p);
  const rows = [["rank for the target", chip.rank.toLocaleString("en")]];
  rows.push(["p_target", p === undefined && least !== undefined ? `< ${prob(least)}` : prob(p)]);
  if (chip.node !== undefined) {
    rows.push(["q_draft", prob(chip.own ?? chip.q)]);
    rows.push(["acceptance probability", `${chip.a}`]);
  }
  if (site) rows.push(["gap of the best two, logits", fixed(site.gap, 2)]);
  return rows;
}

function explain(run, step, chip) {
  const token = inlineToken(run, { ...chip, kind: "plain" });
  const final = step.chips.find((other) => other.node === undefined);
  const sibling = step.drafted.find((other) => other.parent === chip.parent && other.kind === "accepted");
  const winner = sibling ?? final;
  const finalToken = winner ? inlineToken(run, winner) : null;
  if (run.naive && !run.greedy && chip.node !== undefined && chip.kind !== "untested") return explainNaive(chip, token, finalToken);
  if (chip.kind === "rejected") return explainRejected(run, chip, token, finalToken);
  if (chip.kind === "accepted") return explainAccepted(run, chip, token);
  if (chip.kind === "untested") {
    return ["The draft guessed ", token, `, but ${whyUntested(step, chip, sibling)}, so it was never tested and is thrown away.`];
  }
  if (chip.kind === "corrected") {
    if (run.naive && !run.greedy) return [token, " is what the target drew from p_target before it looked at the drafts: none of them was this token."];
    return run.greedy
      ? [token, " is the target's own best token here. It takes the place of the rejected guess, from the same pass."]
      : [token, " takes the place of the rejected guess: drawn from what is left of p_target after q_draft is taken away. That keeps the text exactly the target's."];
  }
  if (chip.kind === "bonus") {
    return [`${plural(step.numAccepted, "drafted token")} held to the end of what was drafted there, and the same pass also gave the target's distribution after them: `, token, " comes on top."];
  }
  return ["One pass of the target, one token: ", token, run.greedy ? " is its best." : " was drawn from p_target."];
}

/** In a tree a further guess for a place is tried only where none before it was kept. */
function whyUntested(step, chip, sibling) {
  if (sibling) return "another guess for the same place was kept";
  const before = step.drafted[chip.parent];
  if (before && before.kind !== "accepted") return "a guess before it was not kept";
  return "the pass had already ended at an earlier token";
}

function explainRejected(run, chip, token, finalToken) {
  const instead = finalToken ? [" The text goes on with ", finalToken, " instead."] : [];
  if (run.greedy) {
    const why = chip.rank === 1
      ? "it ties with the target's first choice, and of equals the lower id goes first."
      : `this is its choice number ${chip.rank.toLocaleString("en")}.`;
    return ["The draft guessed ", token, `, but at temperature 0 only the target's first choice is kept, and ${why}`, ...instead];
  }
  const target = chip.cur === chip.p ? `the target only ${prob(chip.cur)}` : `of the target's ${prob(chip.p)} only ${prob(chip.cur)} was left after another guess here had been rejected`;
  return [
    "The draft gave ", token, ` a probability of ${prob(chip.q)}, ${target}. So it is kept with probability ${prob(chip.cur)} ÷ ${prob(chip.q)} = ${prob(chip.a)}; the draw was ${prob(chip.u)}, not below that.`,
    ...instead,
  ];
}

/** The teaching rule: the draft's probability plays no part in what is kept. */
function explainNaive(chip, token, finalToken) {
  const chance = `a chance of ${prob(chip.p)}, whatever the draft thought (${prob(chip.q)})`;
  if (chip.kind === "accepted") return ["Naive rule: the target drew its token first, and it was ", token, `. That had ${chance}.`];
  return ["Naive rule: the target drew its token first, and it was not ", token, `, which had ${chance}.`, ...(finalToken ? [" It was ", finalToken, "."] : [])];
}

function explainAccepted(run, chip, token) {
  if (run.greedy) return ["The draft guessed ", token, ", and it is the target's first choice here: kept."];
  if (chip.a >= 1) {
    return ["The target likes ", token, ` at least as much as the draft did (${prob(chip.cur)} against ${prob(chip.q)}), so it is always kept.`];
  }
  return ["The draft gave ", token, ` more than the target does (${prob(chip.q)} against ${prob(chip.cur)}), so it is kept with probability ${prob(chip.a)}; the draw was ${prob(chip.u)}, below that.`];
}
