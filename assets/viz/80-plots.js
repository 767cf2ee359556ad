// ---- Plots: Plotly drawn in place. Figures come as JSON; data is what had happened by the time looked at. ----

let plotlyReady = null;

/** The one script that is not in this file, served by the same server. */
function loadPlotly(path) {
  plotlyReady ??= new Promise((resolve, reject) => {
    if (window.Plotly) return resolve(window.Plotly);
    const root = (window.gradio_config?.root ?? "").replace(/\/$/, "");
    const script = el("script", { src: `${root}${window.gradio_config?.api_prefix ?? "/gradio_api"}/file=${path}` });
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("The plot library did not load; everything else works."));
    document.head.append(script);
    return undefined;
  });
  return plotlyReady;
}

class Plots {
  constructor(figures, plotlyPath) {
    this.path = plotlyPath;
    this.plots = figures.map((figure) => {
      const box = el("div", { class: "sv-plotbox" });
      box.style.height = `${figure.height}px`;
      const save = el("button", {
        type: "button", class: "sv-save", title: "Save this plot as a picture", "aria-label": `Save “${figure.title}” as a picture`,
        onclick: () => this.save(plot),
      }, icon("save"));
      const caption = el("span", { text: figure.what });
      const root = el("figure", { class: "sv-plot", "data-key": figure.key },
        el("figcaption", {}, el("b", { text: figure.title }), caption, save), box);
      const plot = { ...figure, box, root, caption, save };
      return plot;
    });
    this.message = el("p", { class: "sv-dim" });
    this.root = el("section", { class: "sv-plots", "aria-label": "Plots" }, ...this.plots.map((plot) => plot.root), this.message);
    this.draw = atMostEvery(220, () => this.paint());
    this.run = null;
    this.time = 0;
    this.plotly = null;
  }

  start() {
    loadPlotly(this.path).then(
      (plotly) => {
        this.plotly = plotly;
        this.draw();
      },
      (error) => {
        this.message.textContent = error.message;
      }
    );
  }

  show(run, time) {
    this.run = run;
    this.time = time;
    this.draw();
  }

  paint() {
    if (!this.plotly || !this.run || !this.root.isConnected) return;
    const style = getComputedStyle(this.root);
    const colour = (role) => style.getPropertyValue(`--sv-plot-${role}`).trim();
    for (const plot of this.plots) {
      if (this.withheld(plot)) continue;
      const data = plot.figure.data.map((trace) => coloured({ ...trace, ...series(this.run, trace.meta, this.time) }, colour));
      const layout = themed(plot.figure.layout, colour);
      thinned(layout.xaxis, data);
      for (const axis of ["xaxis", "yaxis"]) {
        this.room(layout, axis, data, plot);
        if (plot.zoom?.run === this.run.id && plot.zoom[axis]) layout[axis] = { ...layout[axis], range: plot.zoom[axis], autorange: false };
      }
      layout.uirevision = this.run.id;
      this.plotly.react(plot.box, data, layout, { displaylogo: false, responsive: true, displayModeBar: false });
      if (!plot.heard) plot.box.on("plotly_relayout", (change) => this.zoomed(plot, change));
      plot.heard = true;
    }
  }

  /** Whether this run has no such plot; a sentence then stands in its place. */
  withheld(plot) {
    const why = plot.key === "theory" ? this.run.theory?.why_none : undefined;
    const returns = plot.box.hidden && !why;
    plot.box.hidden = plot.save.hidden = Boolean(why);
    plot.caption.textContent = why ?? plot.what;
    if (returns && plot.box.data) this.plotly.Plots.resize(plot.box); // the window may have changed meanwhile
    return Boolean(why);
  }

  /** The visitor zoomed, or let go with a double click: growing axes must not undo that. */
  zoomed(plot, change) {
    if (plot.zoom?.run !== this.run.id) plot.zoom = { run: this.run.id };
    for (const axis of ["xaxis", "yaxis"]) {
      if (change[`${axis}.range[0]`] !== undefined) plot.zoom[axis] = [change[`${axis}.range[0]`], change[`${axis}.range[1]`]];
      else if (change[`${axis}.autorange`] || change[`${axis}.range`]) delete plot.zoom[axis];
    }
    this.draw();
  }

  /** The plot as it stands, on its panel's colour, with its title. */
  async save(plot) {
    if (!this.plotly || !plot.box.data) return;
    const style = getComputedStyle(this.root);
    const paper = style.getPropertyValue("--sv-panel").trim();
    const title = { text: plot.title, x: 0.02, xanchor: "left", font: { size: 15 } };
    const margin = { ...plot.box.layout.margin, t: 64, l: 60 };
    const layout = { ...plot.box.layout, title, margin, paper_bgcolor: paper, plot_bgcolor: paper, width: 720, height: 420 };
    const url = await this.plotly.toImage({ data: plot.box.data, layout }, { format: "png", width: 720, height: 420, scale: 2 });
    el("a", { href: url, download: `specviz-${plot.key}.png` }).click();
  }

  /** Axes grow in steps of at least a quarter, so that they do not move with every point. */
  room(layout, axis, data, plot) {
    const key = axis[0];
    if (layout[axis]?.meta !== "grow") return;
    const most = Math.max(0, ...data.flatMap((trace) => (Array.isArray(trace[key]) ? trace[key] : [])).filter(Number.isFinite));
    plot.limits ??= {};
    if (plot.limits.run !== this.run.id) plot.limits = { run: this.run.id };
    if (!(plot.limits[axis] >= most)) plot.limits[axis] = niceAbove(most * 1.15);
    layout[axis] = { ...layout[axis], range: [0, plot.limits[axis] || 1], autorange: false };
    delete layout[axis].meta;
  }
}

function niceAbove(value) {
  if (!(value > 0)) return 1;
  const scale = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * scale >= value) * scale;
}

/** Whole numbers along an axis: every fourth where all of them could not be read. */
function thinned(axis, data) {
  const most = Math.max(0, ...data.flatMap((trace) => trace.x ?? []).filter(Number.isFinite));
  if (axis?.dtick === 1 && most > 14) axis.dtick = 4;
}

function coloured(trace, colour) {
  const tone = colour(trace.meta.role);
  if (trace.type === "bar") return { ...trace, marker: { ...trace.marker, color: tone } };
  return { ...trace, line: { ...trace.line, color: tone }, marker: { ...trace.marker, color: tone } };
}

function themed(layout, colour) {
  const copy = structuredClone(layout);
  copy.font = { ...copy.font, color: colour("text"), family: getComputedStyle(document.body).fontFamily };
  for (const axis of ["xaxis", "yaxis"]) copy[axis] = { ...copy[axis], gridcolor: colour("grid"), zerolinecolor: colour("grid"), linecolor: colour("grid") };
  for (const shape of copy.shapes ?? []) shape.line = { ...shape.line, color: colour("reference") };
  return copy;
}

/** The points of a trace, by the way its `meta` names. */
function series(run, meta, time) {
  if (!meta?.source) return {};
  return SERIES[meta.source](run, meta, time);
}

const SERIES = {
  /** A field after each pass of a lane (or of both, in the order decoded), over its clock. */
  steps(run, meta, time) {
    const steps = (meta.lane === "race" ? run.course : run.steps[meta.lane]).filter((step) => step.t <= time);
    const points = steps.filter((step) => step.row[meta.y] !== null);
    if (meta.lane === "race") points.sort((a, b) => a.t - b.t);
    return { x: points.map((step) => step.t), y: points.map((step) => step.row[meta.y]) };
  },

  /** How many passes accepted 0, 1, 2 … drafted tokens. */
  histogram(run, meta, time) {
    const passes = draftingPasses(run, time);
    const most = Math.max(0, ...passes.flatMap((step) => step.drafted.map((chip) => chip.depth)));
    const counts = new Array(most + 1).fill(0);
    for (const step of passes) counts[step.numAccepted] += 1;
    return { x: counts.map((_, index) => index), y: counts };
  },

  /** Of all passes that drafted, the share whose token at position d was accepted. */
  positions(run, meta, time) {
    const passes = draftingPasses(run, time);
    const most = Math.max(0, ...passes.flatMap((step) => step.drafted.map((chip) => chip.depth)));
    const depths = Array.from({ length: most }, (_, index) => index + 1);
    const share = (depth) => passes.filter((step) => step.numAccepted >= depth).length / passes.length;
    return { x: depths, y: depths.map(share) };
  },

  /** Milliseconds per token of each lane that went into `meta.y`. */
  split(run, meta, time) {
    const rows = [...LANES].reverse().map((lane) => [lane, run.rowAt(lane, time)]).filter(([, row]) => row?.tokens);
    return {
      y: rows.map(([lane]) => (lane === "baseline" ? "target alone" : "with draft")),
      x: rows.map(([, row]) => (row[meta.y] * 1000) / row.tokens),
    };
  },

  /** What the theory says for the rates measured in this run. */
  theory(run, meta) {
    const theory = run.theory;
    if (!theory || theory.why_none) return { x: [], y: [] };
    if (meta.y === "now") return theory.now === null ? { x: [], y: [] } : { x: [theory.now[0]], y: [theory.now[1]] };
    return { x: theory.draft_len, y: theory.speedup };
  },
};

function draftingPasses(run, time) {
  return run.steps.speculative.filter((step) => step.t <= time && step.drafted.length > 0);
}
