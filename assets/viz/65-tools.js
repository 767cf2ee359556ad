// ---- Help, links, files: what a visitor takes away or brings. ----

/** A modal box with a title and a way out; the browser keeps the focus inside and closes it on Escape. */
function dialog(title, ...content) {
  const close = el("button", { type: "button", class: "sv-btn wide", text: "Close", onclick: () => box.close() });
  const box = el(
    "dialog",
    { class: "sv-dialog", "aria-label": title },
    el("header", {}, el("h3", { text: title }), close),
    ...content
  );
  box.addEventListener("click", (event) => {
    if (event.target === box) box.close();
  });
  return box;
}

/** What went wrong, in one sentence, until something else is shown or the visitor puts it away. */
class Alert {
  constructor() {
    this.text = el("p", { role: "alert" });
    const close = el("button", { type: "button", class: "sv-close", title: "Close", "aria-label": "Close this message", onclick: () => this.say("") }, icon("close"));
    this.root = el("div", { class: "sv-alert" }, this.text, close);
    this.say("");
  }

  say(sentence) {
    this.text.textContent = sentence;
    this.root.hidden = !sentence;
  }
}

function saveAs(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const STORY = [
  "The draft is small and quick. Before each pass of the target it guesses the next γ tokens, one after the other.",
  "The target then reads all guesses in one pass, which takes hardly longer than for one token, and so knows what it would have said at each place.",
  "From the left, each guess is kept with probability min(1, p ÷ q): the target's probability over the draft's. At the first one not kept the pass ends: the target's own token takes its place, and later guesses are thrown away untested. When all are kept, the target adds one token on top.",
  "What comes out has exactly the target's distribution; at temperature 0 it is the target's text, token for token. Only the speed changes, and that is what the two lanes measure, each on its own clock.",
];

class Tools {
  /** `ask` are the server's functions, `view` is told of traces that are opened. */
  constructor(view, ask, maxFileChars) {
    this.view = view;
    this.ask = ask;
    this.maxFileChars = maxFileChars;
    const button = (text, title, action) => el("button", { type: "button", class: "sv-btn wide", text, title, onclick: action });
    this.picker = el("input", { type: "file", accept: ".json,application/json", class: "sv-picker sv-opentrace", tabindex: "-1", "aria-hidden": "true", onchange: () => this.pick() });
    this.keep = [
      button("Save trace", "Everything about this run as JSON: opens here again, or with the command line", () => this.save("trace")),
      button("Save table", "One row for each pass, as CSV", () => this.save("steps")),
    ];
    this.root = el(
      "div",
      { class: "sv-tools" },
      ...this.keep,
      button("Open trace", "Replay a saved run, with no model", () => this.picker.click()),
      el("button", { type: "button", class: "sv-btn", text: "?", title: "Help (?)", "aria-label": "Help", onclick: () => this.help.showModal() }),
      this.picker
    );
    this.help = dialog(
      "How to read this page",
      ...STORY.map((text) => el("p", { text })),
      el("h4", { text: "Keys, anywhere on the page but in a field that takes text" }),
      view.keys.list()
    );
    this.buildLink();
  }

  buildLink() {
    this.address = el("textarea", { class: "sv-address", rows: "4", readonly: true, "aria-label": "Link", spellcheck: "false" });
    this.cut = el("p", { text: "The texts are longer than a link can hold: only a first part is in it." });
    this.copied = el("span", { class: "sv-dim", role: "status" });
    const copy = el("button", { type: "button", class: "sv-btn wide", text: "Copy", onclick: () => this.copy() });
    this.link = dialog(
      "Link to these settings",
      el("p", { text: "It opens the page with every setting as it is now. Your prompt is in the link: whoever has the link can read it. Nothing runs until Run is pressed." }),
      this.cut,
      this.address,
      el("p", {}, copy, " ", this.copied)
    );
  }

  showLink(query, cut) {
    const here = new URL(window.location.href);
    here.search = query;
    here.hash = "";
    this.address.value = here.href;
    this.cut.hidden = !cut;
    this.copied.textContent = "";
    this.link.showModal();
    this.address.select();
  }

  async copy() {
    this.address.select();
    let done = true;
    try {
      await navigator.clipboard.writeText(this.address.value);
    } catch {
      done = document.execCommand("copy"); // pages that are not served over https have no clipboard
    }
    this.copied.textContent = done ? "Copied." : "The browser does not allow it: copy the marked text yourself.";
  }

  show(run) {
    for (const button of this.keep) button.disabled = !run?.course.length;
  }

  async save(what) {
    this.view.complain("");
    try {
      const file = await answered(this.ask.export({ run: this.view.run.id, what, references: this.view.references.whole.checked }));
      if (file?.text) saveAs(file.name, file.type, file.text);
      else this.view.complain(file?.error ?? "The server no longer keeps this run, so there is nothing to save.");
    } catch {
      this.view.complain("The server does not answer, so nothing could be saved.");
    }
  }

  async pick() {
    const file = this.picker.files[0];
    this.picker.value = "";
    if (file) await this.openFile(file);
  }

  /** A file may also be dropped on the race. */
  takeDropped(root) {
    root.addEventListener("dragover", (event) => event.preventDefault());
    root.addEventListener("drop", (event) => {
      event.preventDefault();
      if (event.dataTransfer.files[0]) this.openFile(event.dataTransfer.files[0]);
    });
  }

  async openFile(file) {
    this.view.complain("");
    if (file.size > this.maxFileChars) {
      this.view.complain(`The file is larger than ${this.maxFileChars / 2 ** 20} MB; the command line can replay it.`);
      return;
    }
    try {
      const delta = await answered(this.ask.open_trace(await file.text()));
      this.view.receive(delta);
      if (delta.phase !== "error") this.view.transport.begin();
    } catch {
      this.view.complain("The file could not be sent to the server.");
    }
  }
}
