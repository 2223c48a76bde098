// ---- Confusion matrix ----

// Classes of a matrix, by the width of the screen; with more classes, the most frequent confusions are listed.
const mostClasses = () => matchMedia("(max-width: 44rem)").matches ? 10 : 20;
const MOST_CONFUSIONS = 20;

function confusions() {
  const entries = shownEntries().filter((entry) => entry.confusion.length);
  if (!entries.length) return el("p", { class: "empty" }, "There are no records for the current choices.");
  return entries.map((entry) => {
    const classes = 1 + Math.max(...entry.confusion.flatMap(([label, prediction]) => [label, prediction]));
    const labels = Array.from({ length: Math.max(classes, DATA.images.names[entry.run]?.length ?? 0) }, (_, label) => label);
    const images = entry.confusion.reduce((sum, [, , count]) => sum + count, 0);
    const wrong = entry.confusion.reduce((sum, [label, prediction, count]) => sum + (label === prediction ? 0 : count), 0);
    return el("article", { class: "card" }, el("h3", {}, named(entry)),
      el("p", { class: "about" }, `${whole(wrong)} of ${whole(images)} images are misclassified.`),
      labels.length <= mostClasses() ? matrix(entry, labels) : frequentConfusions(entry));
  });
}

// Rows are labels, columns are predictions. A cell shows its images.
function matrix(entry, labels) {
  const counts = new Map(entry.confusion.map(([label, prediction, count]) => [`${label} ${prediction}`, count]));
  const count = (label, prediction) => counts.get(`${label} ${prediction}`) ?? 0;
  const mistakes = Math.max(1, ...entry.confusion.filter(([label, prediction]) => label !== prediction).map(([, , images]) => images));
  const name = (label) => className(entry.run, label), long = labels.some((label) => name(label).length > 2);
  const cell = (label, prediction) => {
    const images = count(label, prediction), right = label === prediction;
    const total = labels.reduce((sum, other) => sum + count(label, other), 0) || 1;
    const shade = right ? 15 + 55 * images / total : 15 + 55 * images / mistakes; // percent of the color
    return el("td", { style: images > 0 && `background: color-mix(in srgb, var(--${right ? "robust" : "falsified"}) ${shade.toFixed(0)}%, transparent)` },
      images > 0 ? el("button", { type: "button", title: `${whole(images)} images of class ${fullClass(entry.run, label)} are predicted as ${fullClass(entry.run, prediction)}`,
        "aria-label": `${whole(images)} images of class ${fullClass(entry.run, label)} are predicted as ${fullClass(entry.run, prediction)}; show them`,
        onclick: () => showConfused(entry, label, prediction) }, `${images}`) : "·");
  };
  return el("div", { class: "matrix" }, el("table", {},
    el("caption", {}, "rows: labels; columns: predictions"),
    el("thead", {}, el("tr", {}, el("td"), labels.map((label) =>
      el("th", { scope: "col", class: long ? "upright" : false, title: fullClass(entry.run, label) }, el("span", {}, name(label)))))),
    el("tbody", {}, labels.map((label) => el("tr", {},
      el("th", { scope: "row", title: fullClass(entry.run, label) }, el("span", {}, name(label))), labels.map((prediction) => cell(label, prediction)))))));
}

function frequentConfusions(entry) {
  const found = entry.confusion.filter(([label, prediction]) => label !== prediction).sort((a, b) => b[2] - a[2]).slice(0, MOST_CONFUSIONS);
  if (!found.length) return el("p", { class: "empty" }, "No image is misclassified.");
  return table(["label", "prediction", "images"], found.map(([label, prediction, count]) => [fullClass(entry.run, label),
    fullClass(entry.run, prediction), el("button", { type: "button", class: "link", onclick: () => showConfused(entry, label, prediction) }, whole(count))]),
  { numbers: 2 });
}

// Images of one cell, in the browser below.
function showConfused(entry, label, prediction) {
  choose({ entry: DATA.entries.indexOf(entry), show: "all", label, prediction });
  document.getElementById("images").scrollIntoView();
  document.querySelector("#tiles button")?.focus({ preventScroll: true });
}
