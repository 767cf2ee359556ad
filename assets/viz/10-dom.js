// ---- Small tools: elements, numbers, icons. Text reaches the page through textContent only. ----

const NA = "n/a";
const reducedMotion = window.matchMedia("(prefers-reduced-motion: reduce)");

function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const ICONS = {
  play: "M5 3l11 7-11 7z",
  pause: "M4 3h4v14H4zM12 3h4v14h-4z",
  first: "M4 3h2v14H4zM16 3v14L7 10z",
  back: "M14 3v14L5 10z",
  next: "M6 3l9 7-9 7z",
  last: "M4 3l9 7-9 7zM14 3h2v14h-2z",
  close: "M5 4l5 5 5-5 1 1-5 5 5 5-1 1-5-5-5 5-1-1 5-5-5-5z",
  save: "M9 3h2v7h3l-4 4-4-4h3zM4 15h12v2H4z",
};

function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

function fixed(value, digits = 2) {
  return value === null || value === undefined ? NA : value.toFixed(digits);
}

function percent(value, digits = 0) {
  return value === null || value === undefined ? NA : `${(value * 100).toFixed(digits)} %`;
}

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** A probability as a reader wants it: three digits, never a rounded-away 0 or 1. */
function prob(value) {
  if (value === null || value === undefined) return NA;
  if (value > 0 && value < 0.001) {
    const [digits, power] = value.toExponential(1).split("e-");
    return `${digits}·10⁻${[...power].map((digit) => RAISED[digit]).join("")}`;
  }
  if (value < 1 && value > 0.9995) return "> 0.999";
  return value.toFixed(3);
}

function seconds(value) {
  if (value === null || value === undefined) return NA;
  return value < 1 ? `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms` : `${value.toFixed(2)} s`;
}

function plural(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;
}

/**
 * Run `work` at most once per `wait` milliseconds, always once more after the last call. Work that takes longer than
 * `share` of that is asked for less often, so that on a slow machine a click is still answered; what the browser does
 * afterwards, to lay out and to paint, does not count.
 */
function atMostEvery(wait, work, share = 0.2) {
  let timer = null;
  let next = -Infinity;
  return () => {
    if (timer !== null) return;
    timer = setTimeout(() => {
      timer = null;
      const began = performance.now();
      try {
        work();
      } finally {
        next = began + Math.max(wait, (performance.now() - began) / share);
      }
    }, Math.max(0, next - performance.now()));
  };
}

/** Gradio builds a page piece by piece: call `then` once `count` elements match `selector`. */
function whenThere(selector, count, then) {
  const isThere = () => document.querySelectorAll(selector).length >= count;
  if (isThere()) return then();
  const watch = new MutationObserver(() => {
    if (!isThere()) return;
    watch.disconnect();
    then();
  });
  return watch.observe(document.body, { childList: true, subtree: true });
}

/** Values of controls in a form in which equal ones are equal, whether typed, picked or set by a preset. */
function asTexts(values) {
  return values.map((value) => String(value ?? ""));
}

/** What the server answers. Where nobody answers, gradio logs that and gives undefined, which no answer of ours is. */
async function answered(asked) {
  const answer = await asked;
  if (answer === undefined) throw new Error("The server does not answer.");
  return answer;
}
