// ---- Keys: one table that acts anywhere on the page and is shown as help. ----

/** Rows of [keys as a reader sees them, what they do, actions by the key's name]; an action that gives false did nothing. */
function bindings(view) {
  const { transport } = view;
  return [
    ["Space", "play or pause", { " ": () => transport.toggle() }],
    ["← →", "one pass back or on", { ArrowLeft: () => transport.step(-1), ArrowRight: () => transport.step(1) }],
    ["Shift + ← →", "the token before or after", { "Shift+ArrowLeft": () => view.move(-1), "Shift+ArrowRight": () => view.move(1) }],
    ["Home, End", "to the start or the end", { Home: () => transport.seek(0), End: () => transport.toEnd() }],
    ["[ ]", "slower or faster", { "[": () => transport.changeSpeed(-1), "]": () => transport.changeSpeed(1) }],
    ["X", "to the next rejection", { x: () => transport.nextRejection() }],
    ["Esc", "let go of the chosen token", { Escape: () => view.numbers.close() || view.unpin() }],
    ["?", "this help", { "?": () => view.tools.help.showModal() }],
  ];
}

class Keys {
  constructor(view) {
    this.root = view.root;
    this.table = bindings(view);
    this.actions = Object.assign({}, ...this.table.map(([, , actions]) => actions));
    document.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    if (!this.root.isConnected || event.defaultPrevented || event.isComposing) return;
    if (document.querySelector("dialog[open]") || isTheirs(event.target, event.key)) return;
    const action = this.actions[nameOf(event)];
    if (action && action() !== false) event.preventDefault();
  }

  /** The table as help. */
  list() {
    const row = ([keys, what]) => [el("dt", {}, el("kbd", { text: keys })), el("dd", { text: what })];
    return el("dl", { class: "sv-keys" }, ...this.table.flatMap(row));
  }
}

/** The key with Shift where that matters; "" where the browser or the system means something else by it. */
function nameOf(event) {
  const typed = "[]?".includes(event.key) && (event.altKey || event.getModifierState("AltGraph")); // so on many keyboards
  if (event.metaKey || ((event.ctrlKey || event.altKey) && !typed)) return "";
  if (event.key.startsWith("Arrow") && event.shiftKey) return `Shift+${event.key}`;
  return event.key === "X" ? "x" : event.key;
}

const MOVING = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown"];

/** Whether what has the focus does something of its own with this key: a text field with all, a button with Space. */
function isTheirs(target, key) {
  const field = target.closest?.("input, textarea, select, button, summary, a[href], [contenteditable]");
  if (!field || field.matches(".sv-range")) return false;
  if (field.matches("button, summary, a, [type=checkbox]")) return key === " " || key === "Enter";
  if (field.matches("[type=radio], [type=range]")) return key === " " || MOVING.includes(key);
  return true;
}
