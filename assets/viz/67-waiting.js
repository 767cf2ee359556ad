// ---- What a run waits for, in words, under the Run button: its turn, or a model that loads. ----

const TURN_MS = 400; // a run whose turn comes at once is in the line only for a moment

class Waiting {
  /**
   * Gradio draws its own short marks ("queue: 2/3 | 4.1/10.9s", "Error") into `box`; this says what they mean.
   * `onRefused` is called where a run was not taken into the line, of which nothing else tells.
   */
  constructor(box, onRefused) {
    this.onRefused = onRefused;
    this.refused = false;
    this.text = el("p", { class: "sv-waiting", role: "status" });
    this.fill = el("i");
    this.track = el("div", { class: "sv-track", "aria-hidden": "true" }, this.fill);
    this.root = el("div", { class: "sv-waitbox" }, this.text, this.track);
    this.box = box;
    this.since = null;
    box.append(this.root);
    new MutationObserver(() => this.read()).observe(box, { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["class"] });
    this.read();
  }

  read() {
    const refused = this.marks(".error") !== "";
    if (refused && !this.refused) this.onRefused();
    this.refused = refused;
    const place = Number(this.marks(".progress-text").match(/queue: (\d+)/)?.[1] ?? 0);
    if (!place) this.since = null;
    else this.since ??= performance.now();
    const left = place ? TURN_MS - (performance.now() - this.since) : 0;
    if (left > 0) setTimeout(() => this.read(), left + 1);
    const [, step, share] = this.marks(".progress-level-inner").match(/^(.*?)(?: - ([\d.]+)%)?$/s) ?? [];
    this.say(place && left <= 0 ? turnSentence(place) : step ? `${step} …` : "", Number(share ?? 0) / 100);
  }

  marks(selector) {
    const found = this.box.querySelector(`.wrap:not(.hide) ${selector}`);
    return (found?.textContent ?? "").trim();
  }

  /** Changes nothing where nothing has changed, or the observer would hear itself for ever. */
  say(sentence, share) {
    if (this.text.textContent !== sentence) this.text.textContent = sentence;
    if (this.track.hidden !== !share) this.track.hidden = !share;
    this.fill.style.transform = `scaleX(${Math.min(1, share)})`;
    if (this.root.hidden !== !sentence) this.root.hidden = !sentence;
  }
}

function turnSentence(place) {
  const turn = place === 1 ? "Yours is next" : `${plural(place - 1, "more run")} ${place === 2 ? "is" : "are"} in front of yours: you are number ${place} in line`;
  return `Another visitor's run is on. ${turn}. Stop leaves the line.`;
}
