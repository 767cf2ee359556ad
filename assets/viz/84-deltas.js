// ---- The way of a delta to the page: put in order, asked for where one is missing, given up where nobody answers. ----

const SILENCE_MS = 5000;
const MAX_ASKED = 400;
const ANSWER_MS = 20_000; // a server that hangs takes a question and says nothing

class Deltas {
  /** `view` opens runs and draws them; `ask` are the functions of the server. */
  constructor(view, ask) {
    this.view = view;
    this.ask = ask;
    this.stale = new Set(); // runs that are no longer on view: what still comes of them is dropped
    this.heard = 0;
    this.filling = false;
    this.given = null; // the run that was given up last
  }

  receive(delta) {
    if (!delta || !delta.run) return;
    const { view } = this;
    if (view.run?.id !== delta.run) {
      if (delta.seq !== 0 && this.stale.has(delta.run)) return;
      if (view.run) this.stale.add(view.run.id);
      view.complain("");
      view.open(delta);
    }
    this.take(view.run.accept(delta));
    if (this.given === delta.run && view.run.live) view.complain(""); // it was given up too early
    const sentence = (delta.phase === "error" ? delta.note : delta.warning) ?? "";
    if (sentence) view.complain(sentence);
    if (view.run.phase === "error" && !view.run.course.length && view.before) this.goBack();
    if (view.run.gap()) this.fill(view.run.gap());
  }

  take(applied) {
    if (!applied.length) return;
    this.heard = performance.now();
    this.view.take(applied);
  }

  /** A run that was refused before it began leaves what was shown. */
  goBack() {
    this.stale.add(this.view.run.id);
    this.view.goBack();
  }

  /** What the server has of a gap; an error where it does not say in time. */
  missing(gap) {
    const silence = new Promise((_, reject) => setTimeout(reject, ANSWER_MS));
    return Promise.race([answered(this.ask.missing(gap)), silence]);
  }

  async fill(gap) {
    if (this.filling) return;
    this.filling = true;
    try {
      const missed = await this.missing(gap);
      if (missed === null) this.lost(gap.run, "The server no longer knows this run, perhaps because it was started anew");
      for (const delta of missed ?? []) {
        if (delta.run === this.view.run.id) this.take(this.view.run.accept(delta));
      }
    } catch {
      this.lost(gap.run, "The server no longer answers");
    } finally {
      this.filling = false;
    }
  }

  /** A live run that has not been heard of for a while: is there more, or nobody any more? */
  check() {
    const { run, buttons } = this.view;
    if (performance.now() - this.heard < SILENCE_MS) return;
    this.heard = performance.now();
    if (run?.live) this.fill({ run: run.id, from: run.next, to: run.next + MAX_ASKED });
    else if (buttons.busy) this.knock();
  }

  /** A run that waits for its turn has nothing to tell yet, so only this can be asked: is anybody there? */
  async knock() {
    const { view } = this;
    try {
      await this.missing({ run: view.buttons.ticket, from: 0, to: 0 });
    } catch {
      view.complain("The server does not answer, so nothing was started. Press Run again once it is back.");
      view.buttons.over();
    }
  }

  lost(id, why) {
    const { run } = this.view;
    if (id !== run.id || !run.live) return;
    this.given = id;
    run.phase = "error";
    run.note = `${why}, so this run ends here; what has come stays. Run starts another once it is back.`;
    this.view.complain(run.note);
    this.view.settle();
    this.view.buttons.over();
  }
}
