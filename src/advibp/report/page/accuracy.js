// ---- Certified accuracy over eps ----

// Results on different images are not connected, and the radii, which are often measured on fewer images, have a figure of
// their own. Both say which images they rest on.

const epsLine = () => DATA.eps.length ? [{ type: "line", xref: "x", yref: "paper", x0: DATA.eps[chosen.eps].eps,
  x1: DATA.eps[chosen.eps].eps, y0: 0, y1: 1, line: { color: color("soft"), width: 1, dash: "dash" } }] : [];
const accuracyLayout = () => layout(axis("eps", { rangemode: "tozero" }), axis("% of images", { range: [0, 101] }), { shapes: epsLine() });

// Results at each eps that rest on the same images, as lists.
function bySample(points) {
  const groups = new Map();
  for (const at of points) groups.set(at.sample, [...(groups.get(at.sample) ?? []), at]);
  return [...groups.values()];
}

function accuracyFigure() {
  const traces = [];
  for (const entry of shownEntries()) {
    const ink = runColor(entry.run), name = plain(entryName(entry));
    for (const points of bySample(entry.at)) {
      const x = [0, ...points.map((at) => at.eps)], images = plain(DATA.samples[points[0].sample]);
      const start = { value: 100 - points[0].standard, interval: points[0].intervals.standard.map((end) => 100 - end).reverse() };
      const line = (text, read, more) => {
        const values = [start, ...points.map(read)];
        traces.push({ type: "scatter", mode: "lines+markers", cliponaxis: false, x, y: values.map((one) => one?.value), hoverinfo: "text",
          hovertext: x.map((eps, k) => values[k] && lines(`<b>${name}</b>, eps ${significant(eps)}`,
            `${eps ? text : "correct"}: ${percent(values[k].value)} (${between(...values[k].interval)})`, `on ${images}`)), ...more });
      };
      line("not broken", (at) => ({ value: 100 - at.attack, interval: at.intervals.attack.map((end) => 100 - end).reverse() }),
        { line: { color: ink, dash: "dot", width: 1.5 }, marker: { color: ink, symbol: "x-thin-open", size: 7 } });
      line("proved", accuracy, { line: { color: ink, width: 2.5 }, fill: "tonexty", fillcolor: faint(ink, 0.1),
        marker: { color: ink, size: 8, symbol: "diamond" } });
    }
  }
  return traces.length ? { traces, layout: accuracyLayout() } : null;
}

function curveFigure() {
  const traces = [];
  for (const entry of shownEntries().filter((one) => one.curve)) {
    const ink = runColor(entry.run), name = plain(entryName(entry)), images = plain(DATA.samples[entry.curve.sample]);
    const { eps, proved, unbroken, low, high } = entry.curve;
    const line = (x, y, text, more) => traces.push({ type: "scatter", x, y, hoverinfo: "text", mode: "lines",
      hovertext: x.map((at, k) => lines(`<b>${name}</b>, eps ${significant(at)}`, text(k), `on ${images}`)), ...more });
    line(eps, unbroken, (k) => `not broken: ${percent(unbroken[k])}`, { line: { color: ink, dash: "dot", width: 1.5 } });
    line(eps, proved, (k) => `proved: ${percent(proved[k])} (${between(low[k], high[k])})`,
      { line: { color: ink, width: 2.5 }, fill: "tonexty", fillcolor: faint(ink, 0.1) });
    const points = entry.at.filter((at) => at.onRadii);
    if (points.length) line(points.map((at) => at.eps), points.map((at) => at.onRadii.proved),
      (k) => `proved by certify: ${percent(points[k].onRadii.proved)} (${between(...points[k].onRadii.interval)})`,
      { mode: "markers", marker: { color: ink, size: 8, symbol: "diamond-open", line: { width: 2, color: ink } } });
  }
  return traces.length ? { traces, layout: accuracyLayout() } : null;
}

// Which images the points of a figure rest on. `read` returns the [eps, sample] of an entry.
function sampleNotes(read) {
  const notes = shownEntries().map((entry) => ({ entry, points: read(entry) })).filter(({ points }) => points.length);
  const used = new Set(notes.flatMap(({ points }) => points.map(([, sample]) => sample)));
  const text = (points) => used.size === 1 || new Set(points.map(([, sample]) => sample)).size === 1 ? DATA.samples[points[0][1]]
    : points.map(([eps, sample]) => `eps ${eps}: ${DATA.samples[sample]}`).join("; ");
  if (used.size === 1) return notes.length > 0 && el("p", { class: "note" }, `On ${DATA.samples[[...used][0]]}.`);
  return [used.size > 1 && el("p", { class: "note warned" }, "Not the same images: do not compare points that rest on different images."),
    notes.map(({ entry, points }) => el("p", { class: "note" }, named(entry), `: ${text(points)}.`))];
}

const certifiedNotes = () => sampleNotes((entry) => entry.at.map((at) => [DATA.eps.find(({ eps }) => eps === at.eps)?.text, at.sample]));
const curveNotes = () => sampleNotes((entry) => entry.curve ? [["", entry.curve.sample]] : []);

function overEps() {
  const node = section("accuracy", "Certified accuracy over eps", "Share of images that are classified correctly for every change of up to eps.");
  const from = DATA.entries.filter((entry) => entry.curve), certified = DATA.entries.some((entry) => entry.at.length);
  const key = [["— proved"], ["··· not broken by the attack"]];
  if (certified) {
    node.append(from.length ? el("h3", {}, "At each eps, by all verifiers") : "",
      figure(accuracyFigure, { tall: true, eps: true, key: [...key, ["◆ an eps that was certified"]] }), part(el("div"), certifiedNotes));
  }
  if (!from.length) return;
  node.append(certified ? el("h3", {}, "From the radius of each image") : "",
    figure(curveFigure, { tall: true, eps: true, key: [...key, from.some((entry) => entry.at.some((at) => at.onRadii))
      && ["◇ proved by certify, with all its verifiers, on the same images"]].filter(Boolean) }), part(el("div"), curveNotes));
  const radii = section("radii", "Radii",
    "Upwards: the largest eps at which an image is proved. Downwards: the smallest eps at which the attack broke it.");
  radii.append(figure(radiusFigure, { tall: true }), part(el("div"), radiusNotes));
}

const radiusNotes = () => shownEntries().filter((entry) => entry.histogram).map((entry) => {
  const { right, median, never } = entry.histogram, wrong = entry.radiiOf - right;
  return el("p", { class: "note" }, named(entry), `: on ${DATA.samples[entry.curve.sample]}, half of the ${whole(right)} correctly classified images are proved up to eps `
    + `${significant(median)} by ${listed(entry.radiiBy.split(" ").map(checkName))}`
    + (wrong ? `; ${whole(wrong)} misclassified images are not drawn` : "")
    + (never ? `; ${whole(never)} were never broken` : "") + ".");
});
