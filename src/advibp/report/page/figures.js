// ---- Figures: each is a function that returns Plotly's traces and layout for the current choices ----

// Plotly interprets some markup in text. This escapes it.
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const lines = (...texts) => texts.filter((text) => text != null).join("<br>");

// A figure with a key. Plotly's legend is not used, because it would hide and show traces.
function figure(draw, { key, tall = false, eps = false, title } = {}) {
  const div = part(el("div", { class: tall ? "plot tall" : "plot" }), draw, { figure: true, eps });
  return el("figure", {}, title && el("figcaption", {}, title), div,
    key && el("ul", { class: "key" }, key.map((item) => el("li", {}, item))));
}

function axis(title, more = {}) {
  return {
    title: { text: plain(title), standoff: 8, font: { size: 12 } }, gridcolor: color("line"), linecolor: color("line"),
    zeroline: false, automargin: true, fixedrange: true, ...more,
  };
}

function layout(x, y, more = {}) {
  return {
    xaxis: x, yaxis: y, showlegend: false, hovermode: "closest", margin: { l: 48, r: 10, t: 10, b: 42 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: color("soft") },
    hoverlabel: { bgcolor: color("card"), bordercolor: color("line"), font: { color: color("text"), family: "system-ui, sans-serif" }, align: "left" },
    ...more,
  };
}

const CONFIG = { displayModeBar: false, displaylogo: false, responsive: true };

function drawFigure({ node, draw }) {
  if (!window.Plotly) return;
  const drawn = draw(node) ?? { traces: [], layout: layout({ visible: false }, { visible: false }, { annotations: [
    { text: "nothing to show for the current choices", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }] }) };
  Plotly.react(node, drawn.traces, drawn.layout, CONFIG);
}

// ---- The gap between attack and proof ----

// Plotly's symbol and the character for the key, for the first verifier, the second, ...
const MARKERS = [["diamond", "◆"], ["square", "■"], ["triangle-up", "▲"], ["triangle-down", "▼"], ["star", "★"],
  ["hexagon", "⬢"], ["pentagon", "⬟"], ["hourglass", "⧗"], ["cross", "✚"], ["bowtie", "⧓"]];
const VERIFIERS = [...CHECKS.values()].filter((check) => check.kind === "verifier").map((check) => check.name);
const [SYMBOL, GLYPH] = [0, 1];
const marker = (by, part) => MARKERS[Math.max(0, VERIFIERS.indexOf(by)) % MARKERS.length][part];

// A bar for each run in each group (an eps or a class), from the attack error to the verified error.
function gaps(div, groups, xTitle, resultAt, describe) {
  const entries = shownEntries(), traces = [];
  const there = groups.map((group) => entries.filter((entry) => resultAt(entry, group)));
  const step = Math.min(0.86 / Math.max(1, ...there.map((some) => some.length)), 0.08 * groups.length);
  const room = Math.min(1, (div.clientWidth - 60) / groups.length * step / 22); // markers shrink if there is little room
  entries.forEach((entry) => {
    const points = groups.map((group, k) => ({ group, result: resultAt(entry, group),
      x: k + (there[k].indexOf(entry) - (there[k].length - 1) / 2) * step })).filter((point) => point.result);
    if (!points.length) return;
    const ink = runColor(entry.run), of = (read) => points.map((point) => read(point.result));
    const common = { x: points.map((point) => point.x), hoverinfo: "text",
      hovertext: points.map((point) => describe(entry, point.group, point.result)) };
    const bar = (from, to, width, fill) => traces.push({ ...common, type: "bar", base: of(from), width: step * width,
      y: of((result) => to(result) - from(result)), marker: { color: fill, line: { color: ink, width: width > 0.3 ? 1 : 0 } } });
    const signs = (read, symbol, size) => traces.push({ ...common, type: "scatter", mode: "markers", y: of(read),
      marker: { symbol, size: Math.max(4, size * room), color: ink, line: { color: ink, width: 1.5 } } });
    bar((result) => result.standard, (result) => result.attack, 0.07, faint(ink, 0.6));
    bar((result) => result.attack, best, 0.62, faint(ink, 0.28));
    signs((result) => result.standard, "circle-open", 7);
    signs((result) => result.attack, "x-thin", 7);
    for (const by of new Set(points.flatMap((point) => point.result.verified.map(([name]) => name)))) {
      signs((result) => result.verified.find(([name]) => name === by)?.[1], marker(by, SYMBOL), 8);
    }
  });
  if (!traces.length) return null;
  const ticks = groups.map((_, x) => x);
  return { traces, layout: layout(
    axis(xTitle, { tickvals: ticks, ticktext: groups.map((group) => plain(group.text)), showgrid: false,
      range: [-0.6, groups.length - 0.4] }),
    axis("error, % of images", { range: [0, highest(entries.flatMap((entry) => groups.map((group) => resultAt(entry, group))))] }), { barmode: "overlay", hoverdistance: 30 }) };
}

// Upper end of an axis that shows all of these errors.
const highest = (result) => Math.min(104, 1.08 * Math.max(1, ...result.flatMap((at) => at?.verified.map(([, error]) => error) ?? [])));

const errorLine = (name, error, interval) => `${name}: ${percent(error)} (${between(...interval)})`;
const verifiedLines = (result) => result.verified.map(([by, error, ...interval]) =>
  errorLine(`not proved by ${plain(checkName(by))}`, error, interval));
const errorLines = (result) => [errorLine("standard", result.standard, result.intervals.standard),
  errorLine("attack", result.attack, result.intervals.attack), ...verifiedLines(result)];

function gapFigure(div) {
  const drawn = gaps(div, DATA.eps, "eps", (entry, { eps }) => entry.at.find((at) => at.eps === eps),
    (entry, { text }, at) => lines(`<b>${plain(entryName(entry))}</b>, eps ${text}`, ...errorLines(at), `gap: ${gap(at).toFixed(2)} points`));
  if (drawn && chosen.zoom) drawn.layout.yaxis.range = [0, highest(shownEntries().map(atChosen))];
  if (drawn) drawn.layout.shapes = [{ type: "rect", xref: "x", yref: "paper", x0: chosen.eps - 0.48,
    x1: chosen.eps + 0.48, y0: 0, y1: 1, fillcolor: color("mark"), line: { width: 0 }, layer: "below" }];
  return drawn;
}

function classFigure(div) {
  const labels = [...new Set(shownEntries().flatMap((entry) => atChosen(entry)?.classes.map((one) => one.label) ?? []))];
  const run = shownEntries()[0]?.run;
  const groups = labels.sort((a, b) => a - b).map((label) => ({ label, text: className(run, label) }));
  return gaps(div, groups, "class", (entry, { label }) => atChosen(entry)?.classes.find((one) => one.label === label),
    (entry, { text }, result) => lines(`<b>${plain(entryName(entry))}</b>, class ${plain(text)}`, `${result.images} images`,
      ...errorLines(result)));
}

function gapKey(provers) {
  return [["○ standard error"], ["✕ attack error"], ...provers.map((by) => [`${marker(by, GLYPH)} not proved by ${checkName(by)}`]),
    [el("i", { class: "swatch gap" }), "gap: neither proved nor broken"]];
}

// ---- Radii ----

// Histogram of proved radii upwards, of broken radii downwards.
function radiusFigure() {
  const traces = [];
  for (const entry of shownEntries().filter((one) => one.histogram)) {
    const { width, proved, broken } = entry.histogram, ink = runColor(entry.run), name = plain(entryName(entry));
    const bars = (counts, yaxis, text, fill) => traces.push({ type: "scatter", mode: "lines", yaxis, fill: "tozeroy",
      x: counts.flatMap((_, k) => [k * width, (k + 1) * width]),
      y: counts.flatMap((count) => Array(2).fill(100 * count / entry.radiiOf)),
      fillcolor: faint(ink, fill), line: { color: ink, width: 1.5 }, hoverinfo: "text",
      hovertext: counts.flatMap((count, k) => Array(2).fill(lines(`<b>${name}</b>`,
        `${whole(count)} images ${text} eps ${significant(k * width)} to ${significant((k + 1) * width)}`))) });
    bars(proved, "y", "are proved up to", 0.22);
    bars(broken, "y2", "are first broken at", 0.1);
  }
  if (!traces.length) return null;
  const share = (title, more) => axis(title, { rangemode: "tozero", ticksuffix: " %", ...more });
  return { traces, layout: layout(axis("eps", { rangemode: "tozero", anchor: "free", position: 0 }),
    share("proved up to", { domain: [0.52, 1] }),
    { yaxis2: share("broken from", { domain: [0, 0.48], autorange: "reversed" }) }) };
}

// ---- Training ----

const PANELS = [
  { title: "Losses", y: "loss", log: true, of: { loss_lower: "lower loss", loss_upper: "upper loss" } },
  { title: "Errors on validation images", y: "%", scale: 100, of: { standard_error: "standard", verified_error: "not proved" } },
  { title: "eps of training", y: "eps_t", of: { eps: "eps_t" } },
  { title: "Strength of the attack", y: "FOSC", of: { fosc: "FOSC, 0 is a maximum", c_t: "threshold c_t" } },
  { title: "Weights of the two losses", y: "kappa", of: { kappa_lower: "kappa_lower", kappa_upper: "kappa_upper", kappa_reg: "kappa_reg" } },
  { title: "Angle between the two gradients", y: "degrees", line: 90, of: { angle: "above 90°: conflict" } },
  { title: "Branches of Algorithm 1", y: "% of steps", scale: 100, of: { branch_agree: "gradients agree",
    branch_lower: "lower loss prioritized", branch_upper: "upper loss prioritized", branch_conflict: "neither prioritized" } },
  { title: "Time of an epoch", y: "seconds", of: { seconds: "seconds" } },
];
const PHASES = { natural: "natural warm-up", adversarial: "adversarial warm-up", ramp: "ramp: eps grows",
  full: "full eps", latent: "layer-wise stages" };
const logged = (panel) => Object.keys(panel.of).filter((name) => DATA.runs.some((run) => run.history[name]));

function trainingFigure(panel) {
  const traces = [];
  DATA.runs.forEach((run, k) => logged(panel).forEach((name, n) => {
    const y = chosen.runs[k] && run.history[name];
    if (!y) return;
    const values = y.map((value) => value == null ? null : value * (panel.scale ?? 1));
    traces.push({ type: "scatter", x: run.history.epoch, y: values, connectgaps: false, hoverinfo: "text",
      mode: run.history.epoch.length > 2 ? "lines" : "lines+markers",
      line: { color: runColor(k), width: 2, dash: DASHES[n] },
      hovertext: values.map((value, at) => value == null ? "" : lines(`<b>${plain(run.name)}</b>`,
        `epoch ${run.history.epoch[at]}, ${plain(run.history.phase[at])}`, `${panel.of[name]}: ${significant(value)}`)) });
  }));
  if (!traces.length) return null;
  const shapes = phaseShapes();
  if (panel.line) shapes.push({ type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: panel.line, y1: panel.line,
    line: { color: color("soft"), width: 1, dash: "dash" } });
  return { traces, layout: layout(axis("epoch"), axis(panel.y, panel.log ? logarithmic(traces) : { rangemode: "tozero" }),
    { shapes, hoverdistance: 50 }) };
}

// Ticks at 1, 2 and 5 of each decade, or at 1 only if there are many decades.
function logarithmic(traces) {
  const values = traces.flatMap((trace) => trace.y).filter((value) => value > 0);
  const [low, high] = [Math.floor(Math.log10(Math.min(...values))), Math.ceil(Math.log10(Math.max(...values)))];
  const tickvals = [];
  for (let k = low; k <= high && values.length; k++) tickvals.push(...(high - low > 3 ? [1] : [1, 2, 5]).map((digit) => digit * 10 ** k));
  return { type: "log", tickvals, ticktext: tickvals.map(significant) };
}

const shadedRun = () => DATA.runs.findIndex((run, k) => chosen.runs[k] && run.history.epoch.length);

// Phases of the first shown run; other runs may have other phases.
function phases() {
  const run = DATA.runs[shadedRun()], result = [];
  run?.history.phase.forEach((phase, k) => {
    const epoch = run.history.epoch[k];
    if (result.at(-1)?.phase === phase) result.at(-1).to = epoch;
    else result.push({ phase, from: epoch - 1, to: epoch });
  });
  return result;
}

const phaseShapes = () => phases().map(({ phase, from, to }) => ({ type: "rect", xref: "x", yref: "paper", x0: from, x1: to,
  y0: 0, y1: 1, fillcolor: color(`phase-${phase}`) || "rgba(0,0,0,0)", line: { width: 0 }, layer: "below" }));

// ---- Charts of sections ----

function ownChart(content) {
  const traces = content.series.map((one, k) => {
    const ink = runColor(k), bars = one.low && one.high;
    const error = bars ? { error_y: { type: "data", symmetric: false, color: ink, thickness: 1.2,
      array: one.y.map((y, n) => one.high[n] - y), arrayminus: one.y.map((y, n) => y - one.low[n]) } } : {};
    const x = one.x.map((value) => typeof value === "string" ? plain(value) : value);
    const kind = content.kind === "bar" ? { type: "bar", marker: { color: ink } }
      : { type: "scatter", mode: content.kind === "points" ? "markers" : x.length > 40 ? "lines" : "lines+markers",
        line: { color: ink, width: 2 }, marker: { color: ink, size: 7 } };
    return { x, y: one.y, hoverinfo: "text", ...kind, ...error,
      hovertext: x.map((value, n) => lines(`<b>${plain(one.name)}</b>`, `${plain(content.x)}: ${value}`,
        `${plain(content.y)}: ${one.y[n] == null ? "–" : significant(one.y[n])}`,
        bars ? `from ${significant(one.low[n])} to ${significant(one.high[n])}` : null)) };
  });
  if (!traces.length) return null;
  const words = content.series.some((one) => one.x.some((value) => typeof value === "string"));
  return { traces, layout: layout(axis(content.x, words ? { type: "category" } : {}),
    axis(content.y, { ...(content.log ? logarithmic(traces) : {}), ...(content.square ? { scaleanchor: "x" } : {}) }),
    { barmode: "group" }) };
}

// ---- plotly.js, unpacked and run ----

async function unpackPlotly() {
  document.head.append(el("script", {}, await unpack("plotly")));
  if (!window.Plotly) throw new Error("The figures can't be drawn: the browser did not run plotly.js.");
}
