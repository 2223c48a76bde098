"use strict";

// ---- Shared by all scripts: the data, elements, numbers, colors ----

const DATA = JSON.parse(document.getElementById("data").textContent);

// The records of each entry as columns. They are unpacked after the text is shown; null until then.
let RECORDS = null;

// The reader's choices: position in DATA.eps, which runs are shown, whether the gap figure is scaled to the chosen eps.
const chosen = { eps: firstEps(), runs: DATA.runs.map(() => true), zoom: false };

// Of the eps at which most runs were certified: an eps that a run was trained for, otherwise the largest.
function firstEps() {
  const known = DATA.eps.map(({ eps }) => DATA.entries.filter((entry) => entry.at.some((at) => at.eps === eps)).length);
  const most = known.flatMap((count, k) => (count === Math.max(...known) ? [k] : []));
  return most.findLast((k) => DATA.runs.some((run) => run.eps === DATA.eps[k].eps)) ?? most.at(-1) ?? 0;
}

const VERDICTS = ["robust", "falsified", "unknown", "timeout", "error", "misclassified"];
const VERDICT_LABELS = {
  robust: "proved", falsified: "broken", unknown: "undecided", timeout: "timed out", error: "logits not finite",
  misclassified: "misclassified",
};
// Checks of the cascade, in order. DATA.checks is the table of src/advibp/verify/verifiers.py.
const CHECKS = new Map(DATA.checks.map((check, position) => [check.name, { ...check, position }]));
const ALL = "all"; // stands for all verifiers together
const DASHES = ["solid", "dash", "dot", "dashdot"];
const checkName = (by) => (by == null ? "undecided" : by === ALL ? "all verifiers" : CHECKS.get(by)?.label ?? by);
const checkPosition = (by) => CHECKS.get(by)?.position ?? CHECKS.size; // undecided images come last
const byCheck = (a, b) => checkPosition(a) - checkPosition(b);


// Creates an element. Strings become text nodes, never markup.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return node;
}

// Text that was compressed by Python.
async function unpack(id) {
  if (!window.DecompressionStream) {
    throw new Error("This browser can't unpack the figures and records (it has no DecompressionStream); open the page in a newer one.");
  }
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

const percent = (value, digits = 2) => (value == null ? "–" : `${value.toFixed(digits)} %`);
// An error or accuracy with its confidence interval below it.
const between = (low, high) => `${low.toFixed(2)} – ${high.toFixed(2)}`;
const withInterval = (value, interval) => value == null ? "–"
  : [percent(value), interval && el("small", { class: "interval" }, between(...interval))];
const whole = (value) => value.toLocaleString("en");
const significant = (value) => (value === 0 ? "0" : Number(value.toPrecision(3)).toString());
// A proved radius or margin, rounded down so that the statement stays true.
function roundedDown(value) {
  const unit = 10 ** (Math.floor(Math.log10(Math.abs(value) || 1)) - 2);
  return `${Number((Math.floor(value / unit + 1e-9) * unit).toPrecision(3))}`;
}
function seconds(value) {
  if (value < 1e-3) return `${significant(value * 1e6)} µs`;
  return value < 1 ? `${significant(value * 1e3)} ms` : `${significant(value)} s`;
}
const listed = (words) => words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;

// Colors come from the style sheet, so that they follow the theme.
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const RUN_COLORS = 6;
const runColor = (run) => color(`run-${run % RUN_COLORS}`);
function faint(hex, opacity) {
  const [r, g, b] = [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
  return `rgba(${r}, ${g}, ${b}, ${opacity})`;
}

// ---- Runs and their certifications ----

const entryName = (entry) => DATA.runs[entry.run].name + (entry.stage == null ? "" : `, stage ${entry.stage}`);
const shownEntries = () => DATA.entries.filter((entry) => chosen.runs[entry.run]);
const atChosen = (entry) => entry.at.find((at) => at.eps === DATA.eps[chosen.eps]?.eps);
const best = (at) => at.verified.length ? Math.min(...at.verified.map(([, error]) => error)) : null;
// The smallest verified error as a certified accuracy: the accuracy and its interval.
function accuracy(at) {
  const found = at.verified.find(([, error]) => error === best(at));
  return found ? { value: 100 - found[1], interval: [100 - found[3], 100 - found[2]] } : null;
}
// Share of images that are neither proved nor broken. (A search may break images that the attack did not.)
const gap = (at) => 100 * ((at.counts.unknown ?? 0) + (at.counts.timeout ?? 0)) / at.images;
const epsText = () => DATA.eps[chosen.eps].text;
const className = (run, label) => DATA.images.names[run]?.[label] ?? `${label}`;
// The name and the number of a class, where the name is not the number.
const fullClass = (run, label) => className(run, label) === `${label}` ? `${label}` : `${className(run, label)} (${label})`;
const swatch = (run) => el("i", { class: "swatch", style: `background: var(--run-${run % RUN_COLORS})` });
const named = (entry) => el("span", { class: "named" }, swatch(entry.run), entryName(entry));

// ---- Parts of the page, which are redrawn when their data changes ----

const parts = [];
let contents; // the table of contents

function section(id, title, about = "") {
  const node = el("section", { id }, el("h2", {}, el("a", { href: `#${id}` }, title)),
    about && el("p", { class: "about" }, about));
  document.getElementById("main").append(node);
  contents.append(el("li", {}, el("a", { href: `#${id}` }, title)));
  return node;
}

// `draw` fills `node`. `needs` lists what it depends on besides the shown runs.
function part(node, draw, needs = {}) {
  parts.push({ node, draw, ...needs });
  return node;
}

function redraw(wanted = () => true) {
  for (const one of parts.filter(wanted)) {
    if (one.figure) drawFigure(one);
    else one.node.replaceChildren(...[one.draw()].flat(Infinity).filter((child) => child != null && child !== false));
  }
}
