// ---- What the colours mean, and what of the tokens is shown. ----

function legend() {
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

/** Switches that set a class on `root`; nothing is decoded or drawn anew. */
function toggles(root) {
  const toggle = (label, name, on) => {
    const box = el("input", { type: "checkbox", checked: on, onchange: () => root.classList.toggle(name, box.checked !== on) });
    return el("label", {}, box, label);
  };
  return el("div", { class: "sv-toggles" }, toggle("rejected tokens", "hide-rejected", true), toggle("spaces", "show-spaces", false));
}
