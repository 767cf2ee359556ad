// ---- The visitor's own references, beside the prompt: pasted, uploaded, or a set that comes with the page. ----

const KINDS_OF_TEXT = ".txt,.md,.markdown,.html,.htm,.xhtml,.pdf,.py,.js,.ts,.java,.c,.h,.cpp,.rs,.go,.rb,.sh,.json,.csv,.toml,.yaml,.yml,.xml,.tex,.rst,.log,text/*";

class Library {
  /**
   * `ask` are the server's functions, `sets` the bundled sets, `most` the bytes that all references may have; `tell`
   * hears of what is there whenever it has changed.
   */
  constructor(root, ask, sets, most, tell) {
    this.root = root;
    this.ask = ask;
    this.sets = sets;
    this.most = most;
    this.tell = tell;
    this.busy = Promise.resolve(); // one change after the other
    this.build();
  }

  build() {
    const button = (text, title, action) => el("button", { type: "button", class: "sv-btn wide", text, title, onclick: action });
    this.picker = el("input", { type: "file", multiple: true, accept: KINDS_OF_TEXT, class: "sv-picker", tabindex: "-1", "aria-hidden": "true", onchange: () => this.pick() });
    this.text = el("textarea", { class: "sv-paste", rows: "4", "aria-label": "Text to copy from", placeholder: "Paste a text here, then press Add." });
    this.pasting = el("div", { class: "sv-pasting" }, this.text, button("Add", "Add the pasted text as a reference", () => this.paste()));
    this.pasting.hidden = true;
    this.list = el("ul", { class: "sv-docs", "aria-label": "Your references" });
    this.complaint = el("p", { class: "sv-refalert", role: "alert" });
    this.prompts = el("div", { class: "sv-setprompts", role: "group", "aria-label": "Prompts that lean on this set" });
    const sets = this.sets.map((set) => button(set.title, "Take this set in the place of what is here", () => this.take(set)));
    this.root.replaceChildren(
      el(
        "details",
        {},
        el("summary", { text: "References: texts to copy from" }),
        el("p", { text: "A draft copies from them, the target checks. Only you see them; they are dropped when you remove them or leave." }),
        el("div", { class: "sv-libbuttons" }, button("Paste text", "Paste a text to copy from", () => this.openPaste()), button("Add files", "txt, md, html, pdf or source code; 10 files, 5 MB in all", () => this.picker.click()), this.picker),
        this.pasting,
        ...(sets.length ? [el("p", { text: "Or try one of these, with prompts that lean on it:" }), el("div", { class: "sv-libbuttons sv-sets" }, ...sets)] : [])
      ),
      this.complaint,
      this.list,
      this.prompts
    );
    this.root.addEventListener("dragover", (event) => event.preventDefault());
    this.root.addEventListener("drop", (event) => {
      event.preventDefault();
      this.addFiles([...event.dataTransfer.files]);
    });
    this.show({ documents: [], complaint: "" });
  }

  /** Ask for a change and show what is there afterwards; the sentence of what could not be done, or "". */
  change(what, ...details) {
    const change = async () => {
      let answer;
      try {
        await entered();
        answer = await answered(this.ask.library({ visitor: window.svVisitor, do: what, ...Object.assign({}, ...details) }));
      } catch {
        answer = { complaint: "The server does not answer, so nothing was changed." };
      }
      this.show(answer);
      return answer.complaint;
    };
    this.busy = this.busy.then(change);
    return this.busy;
  }

  show({ documents, complaint }) {
    this.complaint.textContent = complaint;
    this.complaint.hidden = !complaint;
    if (!documents) return;
    this.tell(documents);
    const focused = this.list.contains(document.activeElement);
    const before = this.list.children.length;
    this.list.replaceChildren(...documents.map((one) => this.item(one)));
    this.list.hidden = !documents.length;
    if (focused) (this.list.querySelector("input, button") ?? this.root.querySelector("button")).focus();
    if (documents.length > 0 && before === 0) chooseDraft("references");
  }

  item({ name, bytes, in_prompt }) {
    const box = el("input", { type: "checkbox", onchange: () => this.change("prompt", { name, on: box.checked }) });
    box.checked = in_prompt;
    const size = bytes < 1024 ? `${bytes} B` : `${(bytes / 1024).toFixed(bytes < 10240 ? 1 : 0)} KB`;
    return el(
      "li",
      {},
      el("span", { class: "sv-docname", text: name, title: name, dir: "auto" }),
      el("span", { class: "sv-docsize", text: size }),
      el("label", { title: "On: the model reads this text before your prompt. Off: only the draft does." }, box, "in the prompt"),
      el("button", { type: "button", class: "sv-btn", text: "×", "aria-label": `Remove ${name}`, title: "Remove", onclick: () => this.change("remove", { name }) })
    );
  }

  openPaste() {
    this.pasting.hidden = !this.pasting.hidden;
    if (!this.pasting.hidden) this.text.focus();
  }

  async paste() {
    if (await this.change("paste", { text: this.text.value })) return;
    this.text.value = "";
    this.pasting.hidden = true;
  }

  pick() {
    const files = [...this.picker.files];
    this.picker.value = "";
    this.addFiles(files);
  }

  /** One after the other, so that each can be refused by itself. */
  async addFiles(files) {
    const complaints = [];
    for (const file of files) {
      if (file.size > this.most) complaints.push(`${file.name} goes beyond the limit of ${this.most / 2 ** 20} MB for all references; it was left out.`);
      else complaints.push(await this.change("add", { name: file.name, data: await base64(file) }));
    }
    const said = complaints.filter(Boolean).join(" ");
    if (said) this.show({ complaint: said });
  }

  async take(set) {
    if (await this.change("set", { name: set.name })) return;
    chooseDraft("references");
    this.prompts.replaceChildren(
      ...set.prompts.map((one) => el("button", { type: "button", class: "sv-btn wide", text: inShort(one.prompt), title: one.prompt, onclick: () => this.use(one) }))
    );
    if (set.prompts.length) await this.use(set.prompts[0]);
  }

  /** A set's prompt with its texts before it, or without them where it carries what it needs itself. */
  async use({ prompt, in_prompt }) {
    setPrompt(prompt);
    for (const name of [...this.list.querySelectorAll(".sv-docname")].map((node) => node.textContent)) {
      await this.change("prompt", { name, on: in_prompt });
    }
  }
}

/** The server knows this page only once it has heard of it; see `ENTER` in the page's wiring. */
async function entered() {
  for (let tries = 0; tries < 100 && !window.svEntered; tries += 1) await new Promise((resolve) => setTimeout(resolve, 100));
}

/** A file's bytes as base64; empty where they cannot be read. */
function base64(file) {
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result).split(",")[1] ?? "");
    reader.onerror = () => resolve("!");
    reader.readAsDataURL(file);
  });
}

/** What a button has room for of a prompt that may be long: what is asked, and of which passage. */
function inShort(text) {
  const [asked, passage] = text.split("\n").filter((line) => line.trim());
  return passage ? `${shortened(asked, 44)} “${shortened(passage, 28)}”` : shortened(asked, 72);
}

function shortened(text, most) {
  return text.length > most ? `${text.slice(0, most - 1).trimEnd()}…` : text;
}

/** Fill the prompt as if it had been typed. */
function setPrompt(text) {
  const box = document.querySelector("#prompt textarea");
  if (!box) return;
  box.value = text;
  box.dispatchEvent(new Event("input", { bubbles: true }));
}

/** Choose a draft that copies, unless one is chosen already. */
function chooseDraft(name) {
  const radios = [...document.querySelectorAll("#draft input[type=radio]")];
  const labelled = (radio) => radio.closest("label")?.textContent.trim() ?? "";
  if (radios.some((radio) => radio.checked && labelled(radio).startsWith(name))) return;
  radios.find((radio) => labelled(radio).startsWith(name))?.click();
}
