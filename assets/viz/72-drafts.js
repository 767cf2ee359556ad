// ---- What each of several drafts gave to a run. ----

const DRAFT_FIGURES = [
  ["proposed", "tokens that it put into a tree"],
  ["tested", "of these, tried by the target for this draft"],
  ["accepted", "of these, kept"],
  ["unique", "of the accepted, those that no other draft proposed"],
];
const SHARED =
  "Over the whole run. A token that two drafts proposed counts as proposed for both, as tested for each whose own trial took place, as accepted for the one whose trial kept it. Unique: accepted, and proposed by no other draft.";

class Drafts {
  constructor() {
    this.rows = el("tbody");
    const heads = DRAFT_FIGURES.map(([name, what]) => el("th", { scope: "col", text: name, title: what }));
    this.root = el(
      "section",
      { class: "sv-drafts", "aria-label": "What each draft gave" },
      el("h3", { text: "What each draft gave" }),
      el("p", { text: SHARED }),
      el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "draft" }), ...heads)), this.rows)
    );
    this.root.hidden = true;
  }

  /** Nothing where a single draft gave all, or before the run's end is reached. */
  show(run, time) {
    const drafts = run.end && time >= run.duration ? run.end.summary?.proposers ?? [] : [];
    this.root.hidden = drafts.length < 2;
    if (this.root.hidden || this.shown === drafts) return;
    this.shown = drafts;
    this.rows.replaceChildren(
      ...drafts.map((draft, index) =>
        el("tr", {}, el("th", { scope: "row" }, badge(index), ` ${shortName(draft.name)}`), ...DRAFT_FIGURES.map(([name]) => el("td", { text: draft[name].toLocaleString("en") })))
      )
    );
  }
}
