// ---- A token as a chip: its characters, its fate, and marks for what cannot be seen. ----

const TAGS = { accepted: "✓", rejected: "✗", corrected: "→", bonus: "+", untested: "·", plain: "" };
const FATES = {
  accepted: "accepted",
  rejected: "rejected",
  corrected: "corrected by the target",
  bonus: "bonus token",
  untested: "never tested",
  plain: "the target's own token",
};
const MARKS = { " ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽" };
const INVISIBLE = /^[\p{Cf}\p{Cc}\p{Zl}\p{Zp}\u034f\u115f\u1160\u3164]$/u;

function textOf(run, chip) {
  return chip.x ?? run.pieces.get(chip.id)?.t ?? "";
}

/** The real characters stay in the page; marks are drawn by CSS and are never copied. */
function fillText(node, text) {
  let plain = "";
  const flush = () => {
    if (plain) node.append(plain);
    plain = "";
  };
  for (const char of text) {
    const mark = MARKS[char] ?? (INVISIBLE.test(char) ? `U+${char.codePointAt(0).toString(16).toUpperCase()}` : null);
    if (mark === null) {
      plain += char;
      continue;
    }
    flush();
    const kind = char === "\n" ? "nl" : char === " " ? "sp" : "odd";
    node.append(el("span", { class: `m ${kind}`, "data-mark": mark, text: char }));
  }
  flush();
}

function chipNode(run, chip, tag = "span") {
  const piece = run.pieces.get(chip.id) ?? {};
  const text = textOf(run, chip);
  const bytes = chip.x === undefined ? piece.b : chip.b;
  const node = el(tag, { class: `c ${chip.kind}`, "data-tag": TAGS[chip.kind], dir: "auto" });
  if (piece.s) {
    node.classList.add("special");
    node.append(el("span", { class: "m label", "data-mark": text || "special" }));
  } else {
    if (text.trim() === "") node.classList.add("blank");
    fillText(node, text);
  }
  if (bytes) node.append(el("span", { class: "m label bytes", "data-mark": bytes }));
  return node;
}

/** A token inside a sentence: in quotation marks, its spaces and line ends drawn. */
function inlineToken(run, chip) {
  return el("span", { class: "sv-inline" }, "“", chipNode(run, chip), "”");
}

function candidate(id) {
  return { id, kind: "plain" };
}
