// ---- A pass as a tree: one column per depth, who proposed what, in which order it was tried. ----

const LETTERS = "ABCDEFGH"; // each with a shape of its own in the style sheet
const NARROWEST = 118; // of a column; where there is room they are wider, so that words are not cut
const WIDEST = 176;
const GAP = 18;
const MARGIN = 22;
const ROW = 28;

/** Whether a pass is more than one chain of one draft. */
function branches(step) {
  return step.drafted.some((chip, index) => chip.parent !== index - 1 || (chip.by?.length ?? 0) > 1 || chip.by?.[0] > 0);
}

class TreeView {
  constructor() {
    this.head = el("p", { class: "sv-treehead" });
    this.canvas = el("div", { class: "sv-treecanvas" });
    this.scroll = el("div", { class: "sv-treescroll" }, this.canvas);
    this.root = el("div", { class: "sv-tree" }, this.head, this.scroll);
    this.root.hidden = true;
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.step = null;
  }

  /** Draw the pass of a token, or only mark the token where its pass is drawn already. */
  show(run, token) {
    const step = token?.step;
    this.root.hidden = !step || !branches(step);
    if (this.root.hidden) return;
    if (step !== this.step || run !== this.run) this.draw(run, step);
    for (const node of this.buttons) {
      const chosen = node.svIndex === token.index;
      node.classList.toggle("chosen", chosen);
      node.setAttribute("aria-current", chosen ? "true" : "false");
      node.tabIndex = chosen ? 0 : -1;
    }
    if (!this.buttons.some((node) => node.tabIndex === 0) && this.buttons.length) this.buttons[0].tabIndex = 0;
  }

  draw(run, step) {
    Object.assign(this, { run, step });
    this.places = layOut(step);
    const size = { depth: Math.max(...this.places.map((place) => place.depth)), rows: 1 + Math.max(...this.places.map((place) => place.row)) };
    const column = Math.min(WIDEST, Math.max(NARROWEST, Math.floor((this.scroll.clientWidth - MARGIN) / size.depth)));
    this.canvas.style.width = `${size.depth * column + MARGIN - GAP}px`;
    this.canvas.style.height = `${size.rows * ROW}px`;
    this.canvas.setAttribute("role", "group");
    this.canvas.setAttribute("aria-label", `Pass ${step.i + 1} as a tree, ${plural(step.drafted.length, "node")}; arrow keys walk it`);
    const trials = trialsOf(step);
    this.buttons = this.places.map((place) => treeNode(run, place, column, trials.get(place.chip.node) ?? []));
    for (const node of this.buttons) {
      node.addEventListener("click", () => this.pick(node));
      node.addEventListener("focus", () => this.pick(node));
    }
    this.canvas.replaceChildren(edges(this.places, column), el("span", { class: "sv-treeroot", title: "prompt and answer so far" }), ...this.buttons);
    this.head.replaceChildren(...treeHead(run, step));
  }

  pick(node) {
    this.root.dispatchEvent(new CustomEvent("sv-pick", { bubbles: true, detail: { step: this.step, index: node.svIndex } }));
  }

  /** Up and down within a column, left to the parent, right to the first child. */
  key(event) {
    const at = this.buttons.indexOf(event.target.closest(".sv-node"));
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const here = this.places[at];
    const column = this.places.filter((place) => place.depth === here.depth).sort((a, b) => a.row - b.row);
    const next = {
      ArrowUp: () => column[column.indexOf(here) - 1],
      ArrowDown: () => column[column.indexOf(here) + 1],
      ArrowLeft: () => here.parent,
      ArrowRight: () => this.places.find((place) => place.parent === here),
    }[event.key];
    if (!next) return;
    event.preventDefault();
    event.stopPropagation();
    const target = this.buttons[this.places.indexOf(next())];
    if (!target) return;
    target.focus();
    target.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

/** Chips with their depth and row: a parent stands in the row of its first child, leaves below one another. */
function layOut(step) {
  const places = step.chips.map((chip, index) => ({ chip, index, children: [] }));
  const accepted = step.drafted.filter((chip) => chip.kind === "accepted").at(-1);
  const roots = [];
  for (const place of places) {
    const above = place.chip.node === undefined ? accepted?.node ?? -1 : place.chip.parent;
    place.parent = above < 0 ? undefined : places[above];
    place.depth = place.parent ? place.parent.depth + 1 : 1;
    (place.parent?.children ?? roots).push(place);
  }
  let row = 0;
  const visit = (place) => {
    place.row = row;
    place.children.forEach((child, index) => {
      if (index) row += 1;
      visit(child);
    });
  };
  roots.forEach((place, index) => {
    if (index) row += 1;
    visit(place);
  });
  return places;
}

/** Node → its trials, one for each proposer, with their places in the order of the whole walk, from 1. */
function trialsOf(step) {
  const trials = new Map();
  let order = 0;
  for (const [node, proposer, cur, row, u] of step.sites.flatMap((site) => site.t ?? [])) {
    order += 1;
    trials.set(node, [...(trials.get(node) ?? []), { order, proposer, cur, row, u }]);
  }
  return trials;
}

function treeNode(run, place, column, trials) {
  const { chip } = place;
  const own = chip.node === undefined;
  const by = own ? [] : chip.by ?? [0];
  const told = nodeFacts(run, chip, by, trials);
  const node = el(
    "button",
    { type: "button", class: `sv-node ${chip.kind}`, title: told, tabindex: "-1" },
    el("span", { class: "who", "aria-hidden": "true" }, ...by.map((proposer) => badge(proposer)), own ? ownBadge() : null),
    chipNode(run, chip),
    trials.length ? el("sup", { text: trials.map((trial) => trial.order).join(","), "aria-hidden": "true" }) : null
  );
  node.setAttribute("aria-label", `${textOf(run, chip).trim() || "blank"}: ${FATES[chip.kind]}. ${told}`);
  node.style.left = `${(place.depth - 1) * column + MARGIN}px`;
  node.style.top = `${place.row * ROW}px`;
  node.style.width = `${column - GAP}px`;
  node.svIndex = place.index;
  return node;
}

function badge(proposer) {
  return el("i", { class: `sv-badge by${proposer % LETTERS.length}`, text: LETTERS[proposer] ?? `${proposer + 1}` });
}

function ownBadge() {
  return el("i", { class: "sv-badge own", text: "T" });
}

/** What hovering tells: p, q, draw and what was left; of a token that was tried twice, both trials. */
function nodeFacts(run, chip, by, trials) {
  const names = run.started.speculative?.proposers ?? [];
  const facts = by.length ? [`proposed by ${by.map((proposer) => names[proposer] ?? proposer + 1).join(" and ")}`] : ["the target's own"];
  if (chip.p !== undefined) facts.push(`p_target ${prob(chip.p)}`);
  if (chip.kind === "untested") facts.push(`q_draft ${prob(chip.q)}`);
  for (const { order, proposer, cur, row, u } of trials) {
    facts.push(trials.length > 1 ? `trial ${order} for ${names[proposer] ?? proposer + 1}` : `trial ${order}`);
    facts.push(`q_draft ${prob(run.greedy ? chip.own : row)}`);
    if (cur !== chip.p) facts.push(`left of p ${prob(cur)}`);
    facts.push(`draw ${prob(u)}`);
  }
  if (!trials.length && chip.u !== undefined) facts.push(`draw ${prob(chip.u)}`);
  if (chip.mass !== undefined && chip.mass < 1) facts.push(`residual mass ${prob(chip.mass)}`);
  return facts.join(", ");
}

function edges(places, column) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("aria-hidden", "true");
  for (const place of places) {
    const [x, y] = place.parent ? [place.parent.depth * column + MARGIN - GAP, place.parent.row * ROW + ROW / 2] : [9, ROW / 2];
    const end = [(place.depth - 1) * column + MARGIN, place.row * ROW + ROW / 2];
    const path = document.createElementNS(space, "path");
    path.setAttribute("d", `M${x} ${y}C${x + 12} ${y} ${end[0] - 12} ${end[1]} ${end[0]} ${end[1]}`);
    path.setAttribute("class", place.chip.kind === "rejected" || place.chip.kind === "untested" ? place.chip.kind : "kept");
    svg.append(path);
  }
  return svg;
}

function treeHead(run, step) {
  const names = run.started.speculative?.proposers ?? [];
  const path = plural(step.numAccepted, "token");
  const given = plural(step.numAccepted + step.chips.length - step.drafted.length, "token");
  const parts = [`Pass ${step.i + 1}: ${plural(step.drafted.length, "node")} checked at once, path of ${path} kept, ${given} given in all. Small numbers: order of the trials. `];
  names.forEach((name, index) => parts.push(badge(index), ` ${shortName(name)}  `));
  parts.push(ownBadge(), " the target's own  ");
  if (run.start?.config?.rule === "naive") parts.push(el("b", { text: "Naive rule, for teaching: the target drew first, then looked into the tree." }));
  return parts;
}
