"use strict";

// ---- What everything below uses: the data, elements, numbers, colours ----

const DATA = JSON.parse(document.getElementById("data").textContent);

// What the reader chose: a place in DATA.eps, which runs are shown, whether the gap at that eps fills its figure.
const chosen = { eps: firstEps(), runs: DATA.runs.map(() => true), zoom: false };

// Of those at which most runs were certified, the one that a run was trained for, or the largest.
function firstEps() {
  const known = DATA.eps.map(({ eps }) => DATA.entries.filter((entry) => entry.at.some((at) => at.eps === eps)).length);
  const most = known.flatMap((count, k) => (count === Math.max(...known) ? [k] : []));
  return most.findLast((k) => DATA.runs.some((run) => run.eps === DATA.eps[k].eps)) ?? most.at(-1) ?? 0;
}

const VERDICTS = ["robust", "falsified", "unknown", "timeout", "error", "misclassified"];
const SAID = {
  robust: "proved safe", falsified: "broken", unknown: "open", timeout: "out of time", error: "no finite answer",
  misclassified: "wrong already",
};
// Stages of the cascade, in order. DATA.stages is the table of src/advibp/verify/verifiers.py.
const STAGES = new Map(DATA.stages.map((stage, position) => [stage.name, { ...stage, position }]));
const ALL = "all"; // stands for all verifiers together
const DASHES = ["solid", "dash", "dot", "dashdot"];
const stageName = (by) => (by == null ? "nobody" : by === ALL ? "all verifiers" : STAGES.get(by)?.label ?? by);
const stagePosition = (by) => STAGES.get(by)?.position ?? STAGES.size; // undecided images come last
const byStage = (a, b) => stagePosition(a) - stagePosition(b);


// An element; strings become text, never markup.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return node;
}

const percent = (value, digits = 2) => (value == null ? "–" : `${value.toFixed(digits)} %`);
const whole = (value) => value.toLocaleString("en");
const significant = (value) => (value === 0 ? "0" : Number(value.toPrecision(3)).toString());
function seconds(value) {
  if (value < 1e-3) return `${significant(value * 1e6)} µs`;
  return value < 1 ? `${significant(value * 1e3)} ms` : `${significant(value)} s`;
}
const listed = (words) => words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;

// Colours are the style sheet's, so that they follow the theme.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const RUN_COLOURS = 6;
const runColour = (run) => colour(`run-${run % RUN_COLOURS}`);
function faint(hex, opacity) {
  const [r, g, b] = [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
  return `rgba(${r}, ${g}, ${b}, ${opacity})`;
}

// ---- Runs and what was certified of them ----

const entryName = (entry) => DATA.runs[entry.run].name + (entry.stage == null ? "" : `, stage ${entry.stage}`);
const shownEntries = () => DATA.entries.filter((entry) => chosen.runs[entry.run]);
const atChosen = (entry) => entry.at.find((at) => at.eps === DATA.eps[chosen.eps]?.eps);
const best = (at) => at.verified.length ? Math.min(...at.verified.map(([, error]) => error)) : null;
// What is neither proved nor broken: a search may break what the attack did not.
const gap = (at) => 100 * ((at.counts.unknown ?? 0) + (at.counts.timeout ?? 0)) / at.images;
const epsSaid = () => DATA.eps[chosen.eps].said;
function className(run, label) {
  const name = DATA.images.names[run]?.[label];
  return name == null ? `${label}` : name;
}
const swatch = (run) => el("i", { class: "swatch", style: `background: var(--run-${run % RUN_COLOURS})` });
const named = (entry) => el("span", { class: "named" }, swatch(entry.run), entryName(entry));

// ---- Parts of the page; each draws itself anew when what it shows has changed ----

const parts = [];
let contents; // the list of sections on top

function section(id, title, about = "") {
  const node = el("section", { id }, el("h2", {}, el("a", { href: `#${id}` }, title)),
    about && el("p", { class: "about" }, about));
  document.getElementById("main").append(node);
  contents.append(el("li", {}, el("a", { href: `#${id}` }, title)));
  return node;
}

// `draw` fills `node`; `needs` tells what it must be drawn again for, besides the runs that are shown.
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
