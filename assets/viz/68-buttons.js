// ---- Run and Stop: what the two buttons say and allow while a run waits, goes on, or is being stopped. ----

const BUTTONS = {
  idle: { run: "Run", stop: "Stop" },
  waiting: { run: "Starting …", stop: "Stop" },
  running: { run: "Running …", stop: "Stop" },
  stopping: { run: "Running …", stop: "Stopping …" },
};

class RunButtons {
  constructor() {
    this.ticket = ""; // the id of the run that was asked for last
    this.turn("idle");
    whenThere("#run, #stop", 2, () => this.turn(this.state));
  }

  get busy() {
    return this.state !== "idle";
  }

  turn(state) {
    this.state = state;
    const isOff = { run: this.busy, stop: !this.busy || state === "stopping" };
    for (const [name, text] of Object.entries(BUTTONS[state])) {
      const button = document.getElementById(name);
      if (!button) continue;
      if (button.textContent !== text) button.textContent = text;
      button.disabled = isOff[name];
    }
  }

  /** Run was pressed. Returns the id that the run is to have; where one is on already, the id of that. */
  pressed() {
    if (this.busy) return this.ticket;
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    this.ticket = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
    this.turn("waiting");
    return this.ticket;
  }

  /** Stop was pressed. Returns the id of the run to stop. */
  stopPressed() {
    if (this.busy) this.turn("stopping");
    return this.ticket;
  }

  /** A run has been heard of. Of one that was given up too early nobody else will say that it is over. */
  heard(run) {
    if (run.id !== this.ticket) return;
    if (!run.live && this.revived) this.over();
    if (!run.live || (this.state !== "waiting" && this.state !== "idle")) return;
    this.revived = this.state === "idle";
    this.turn("running");
  }

  /** Gradio has done with the run, or nothing more will come of it: only now it takes another press of Run. */
  over() {
    this.revived = false;
    this.turn("idle");
  }
}
