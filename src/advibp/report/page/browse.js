// ---- Browsing the records: filters, order, tiles, details, CSV ----

const SHOW = [
  ["all", "all", () => true],
  ["misclassified", "misclassified", (verdict) => verdict === "misclassified" || verdict === "error"],
  ["falsified", "broken", (verdict) => verdict === "falsified"],
  ["open", "undecided", (verdict) => verdict === "unknown" || verdict === "timeout"],
  ["robust", "proved", (verdict) => verdict === "robust"],
];
const HARDNESS = ["misclassified", "error", "falsified", "unknown", "timeout", "robust"];
const last = Infinity; // for what is not known
const ORDERS = {
  hard: ["hardest first: smallest margin", (a, b) => HARDNESS.indexOf(a.verdict) - HARDNESS.indexOf(b.verdict) || (a.margin ?? last) - (b.margin ?? last)],
  radius: ["smallest proved radius first", (a, b) => (a.radius?.proved ?? last) - (b.radius?.proved ?? last)],
  easy: ["largest margin first", (a, b) => (b.margin ?? -last) - (a.margin ?? -last)],
  number: ["by number", () => 0],
  time: ["longest time first", (a, b) => b.seconds - a.seconds],
};

// The reader's choices. `show` null: the first of broken, undecided, proved that has images.
const browsing = { entry: null, show: null, label: null, prediction: null, order: "hard", page: 0, problem: "" };

// The records of an entry at an eps as objects, in the order of their numbers.
const records = cached((entry, eps) => {
  const columns = RECORDS[entry].at.find((at) => at.eps === eps), radii = RECORDS[entry].radii;
  if (!columns) return [];
  const radius = new Map(radii.index.map((index, k) => [index, { proved: radii.proved[k], broken: radii.broken[k] }]));
  const check = (by) => typeof by === "number" ? DATA.checks[by].name : by;
  return columns.index.map((index, k) => ({ entry, eps, index, label: columns.label[k], prediction: columns.prediction[k],
    verdict: DATA.verdicts[columns.verdict[k]], by: check(columns.by[k]), margin: columns.margin[k], seconds: columns.seconds[k],
    picture: columns.picture[k], change: columns.change[k], row: columns.row[k], changed: columns.changed[k], now: columns.now[k], radius: radius.get(index) ?? null }))
    .sort((a, b) => a.index - b.index);
});

function cached(compute) {
  const kept = new Map();
  return (...key) => {
    const text = key.join(" ");
    if (!kept.has(text)) kept.set(text, compute(...key));
    return kept.get(text);
  };
}

// Entries with records at the chosen eps, and the chosen one of them.
const browsable = () => DATA.entries.flatMap((entry, k) => chosen.runs[entry.run] && records(k, DATA.eps[chosen.eps]?.eps).length ? [k] : []);
function browsedEntry() {
  const possible = browsable();
  return possible.includes(browsing.entry) ? browsing.entry : possible[0];
}

const shownRecords = (show, all) => all.filter(({ verdict }) => SHOW.find(([name]) => name === show)[2](verdict));

function firstShow(all) {
  return browsing.show ?? ["falsified", "open", "robust"].find((show) => shownRecords(show, all).length) ?? "all";
}

function selection() {
  const all = records(browsedEntry(), DATA.eps[chosen.eps].eps);
  const ofClass = all.filter(({ label, prediction }) => (browsing.label == null || label === browsing.label)
    && (browsing.prediction == null || prediction === browsing.prediction));
  const show = firstShow(ofClass);
  return { all, ofClass, show, found: shownRecords(show, ofClass).sort(ORDERS[browsing.order][1]) };
}

let drawBrowser = () => {};

function choose(change) {
  Object.assign(browsing, { page: 0, problem: "" }, change);
  drawBrowser();
}

// ---- Controls ----

function select(label, options, value, onchange) {
  const node = el("select", { "aria-label": label, onchange: () => onchange(node.value) },
    options.map(([name, text]) => el("option", { value: name, selected: `${name}` === `${value}` }, text)));
  return el("label", { class: "choice" }, el("span", {}, label), node);
}

function classSelect(label, key, run, classes) {
  return select(label, [["", "all"], ...classes.map((k) => [k, fullClass(run, k)])], browsing[key] ?? "",
    (value) => choose({ [key]: value === "" ? null : Number(value) }));
}

function goTo(all) {
  const number = el("input", { type: "number", min: 0, step: 1, inputmode: "numeric", placeholder: `${all[0].index}`, "aria-label": "number of a test image" });
  return el("form", { class: "choice", onsubmit: (event) => {
    event.preventDefault();
    const found = all.find(({ index }) => index === Number(number.value || number.placeholder));
    if (found) showDetails([found], found);
    else choose({ problem: `Test image ${number.value} was not certified at eps ${epsText()}.` });
  } }, el("label", { class: "choice" }, el("span", {}, "image number"), number), el("button", { type: "submit" }, "show"));
}

function browserControls({ all, ofClass, show }) {
  const entry = browsedEntry(), run = DATA.entries[entry].run, possible = browsable();
  const classes = (read) => [...new Set(all.map(read))].sort((a, b) => a - b);
  const orders = Object.entries(ORDERS).filter(([name]) => name !== "radius" || all.some((record) => record.radius));
  return [
    el("div", { class: "filters", role: "group", "aria-label": "verdict" }, SHOW.map(([name, text]) => {
      const count = shownRecords(name, ofClass).length;
      return el("button", { type: "button", "aria-pressed": `${name === show}`, disabled: !count && name !== show, onclick: () => choose({ show: name }) },
        name !== "all" && el("i", { class: `swatch v-${name === "open" ? "unknown" : name}` }), `${text} `, el("small", {}, whole(count)));
    })),
    el("div", { class: "choices" },
      possible.length > 1 && select("run", possible.map((k) => [k, entryName(DATA.entries[k])]), entry, (value) => choose({ entry: Number(value) })),
      classSelect("class", "label", run, classes((record) => record.label)),
      classSelect("prediction", "prediction", run, classes((record) => record.prediction)),
      select("order", orders.map(([name, [text]]) => [name, text]), browsing.order, (order) => choose({ order })),
      goTo(all)),
    browsing.problem && el("p", { class: "note warned", role: "alert" }, browsing.problem),
  ];
}

// ---- Tiles ----

function tile(record, list, all) {
  const run = DATA.entries[record.entry].run, truth = className(run, record.label);
  const other = record.verdict === "misclassified" ? record.prediction : record.now;
  const title = [`test image ${record.index}`, `class ${fullClass(run, record.label)}`, `predicted ${fullClass(run, record.prediction)}`,
    VERDICT_LABELS[record.verdict] + (record.by ? ` by ${checkName(record.by)}` : ""),
    record.margin != null && `lower margin ${roundedDown(record.margin)}`,
    record.radius && `proved up to eps ${roundedDown(record.radius.proved)}`].filter(Boolean).join(", ");
  return el("button", { type: "button", class: "tile", title, "aria-label": title, onclick: () => showDetails(list, record) },
    el("span", { class: "pictures" }, picturesOf(record, all)),
    el("span", { class: "caption" }, el("i", { class: `swatch v-${record.verdict}` }),
      el("span", { class: "class" }, truth, other != null && [" → ", el("b", {}, className(run, other))]), el("small", {}, `#${record.index}`)));
}

// Arrow keys move between tiles.
function moveBetweenTiles(event) {
  const tiles = [...document.querySelectorAll("#tiles button")], at = tiles.indexOf(document.activeElement);
  const columns = tiles.filter((one) => one.offsetTop === tiles[0].offsetTop).length;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
  if (at < 0 || !step) return;
  event.preventDefault();
  tiles[at + step]?.focus();
}

function pager(count, size) {
  const pages = Math.max(1, Math.ceil(count / size)), from = browsing.page * size;
  const turn = (text, by, label) => el("button", { type: "button", "aria-label": label, disabled: !(browsing.page + by in Array(pages).fill(0)),
    onclick: () => { choose({ page: browsing.page + by }); document.querySelector(`#images [aria-label="${label}"]`)?.focus(); } }, text);
  return el("div", { class: "pager" }, turn("←", -1, "previous images"),
    el("span", { "aria-live": "polite" }, count ? `${whole(from + 1)} – ${whole(Math.min(count, from + size))} of ${whole(count)}` : "none"),
    turn("→", 1, "next images"));
}

function browser() {
  if (!RECORDS) return el("p", { class: "empty" }, "The records are being unpacked.");
  if (browsedEntry() == null) return el("p", { class: "empty" }, "There are no records for the current choices.");
  const chosenNow = selection(), { all, found, show } = chosenNow, rows = all.some((record) => record.row != null),
    triples = show === "falsified" && all.some((record) => record.change != null);
  const size = triples || rows ? 18 : 48, list = found.slice(browsing.page * size, (browsing.page + 1) * size);
  return [browserControls(chosenNow),
    el("div", { id: "tiles", class: rows ? "tiles rows" : triples ? "tiles triples" : "tiles", onkeydown: moveBetweenTiles }, list.map((record) => tile(record, found, triples))),
    !found.length && el("p", { class: "empty" }, "No image fits the filters."),
    el("div", { class: "under" }, pager(found.length, size),
      el("span", { class: "downloads" }, "CSV: ", downloadLink("these records", () => found), downloadLink("all records", everyRecord)))];
}

// ---- Details of an image ----

function showDetails(list, record) {
  const dialog = el("dialog", { "aria-label": `test image ${record.index}`, onclose: () => dialog.remove(), onclick: (event) => event.target === dialog && shut() });
  const shut = () => { dialog.close(); dialog.remove(); };  // the close event comes later
  let at = list.indexOf(record);
  const move = (by) => { if (list[at + by]) { at += by; draw(); } };
  const button = (text, label, by) => el("button", { type: "button", "aria-label": label, disabled: !list[at + by], onclick: () => { move(by); dialog.querySelector(`[aria-label="${label}"]`)?.focus(); } }, text);
  function draw() {
    dialog.replaceChildren(el("div", { class: "bar" }, button("←", "previous image", -1), button("→", "next image", 1),
      el("span", {}, list.length > 1 && `${whole(at + 1)} of ${whole(list.length)}`),
      el("button", { type: "button", "aria-label": "close", onclick: shut }, "✕")), ...details(list[at]).filter(Boolean));
  }
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") move(-1);
    if (event.key === "ArrowRight") move(1);
  });
  draw();
  document.body.append(dialog);
  dialog.showModal();
}

function details(record) {
  const run = DATA.entries[record.entry].run, pictures = picturesOf(record, true);
  const captions = ["the image", record.now == null ? "adversarial example" : `adversarial example: ${fullClass(run, record.now)}`, `the change, eps ${significant(record.eps)} is the full color`];
  return [
    el("h3", {}, `Test image ${record.index}: class ${fullClass(run, record.label)}`),
    el("div", { class: "large" }, pictures.map((picture, k) => el("figure", {}, picture, pictures.length > 1 && el("figcaption", {}, captions[k])))),
    table(["run", "eps", "prediction", "verdict", "decided by", "lower margin", "time"], everyRecord(record.index, run).map((one) => [
      named(DATA.entries[one.entry]), DATA.eps.find(({ eps }) => eps === one.eps).text, fullClass(DATA.entries[one.entry].run, one.prediction),
      el("span", { class: "named" }, el("i", { class: `swatch v-${one.verdict}` }), VERDICT_LABELS[one.verdict]),
      one.by ? checkName(one.by) : "–", one.margin == null ? "–" : roundedDown(one.margin), seconds(one.seconds)]), { numbers: 5, titles: 2 }),
    record.radius && el("p", { class: "note" }, named(DATA.entries[record.entry]), `: proved up to eps ${roundedDown(record.radius.proved)}`
      + (record.radius.broken == null ? ", never broken." : `, broken at eps ${significant(record.radius.broken)}.`)),
  ];
}

// Records of all shown entries at all eps; those of one image only for runs of the same data.
function everyRecord(index = null, run = null) {
  const data = (k) => DATA.recipes.find(({ key }) => key === "data")?.values[k];
  return DATA.entries.flatMap((entry, k) => !chosen.runs[entry.run] || (run != null && data(entry.run) !== data(run)) ? []
    : DATA.eps.flatMap(({ eps }) => index == null ? records(k, eps) : records(k, eps).filter((record) => record.index === index)));
}

// ---- CSV ----

const CSV = {
  run: (r) => DATA.runs[DATA.entries[r.entry].run].name, stage: (r) => DATA.entries[r.entry].stage, eps: (r) => r.eps, image: (r) => r.index,
  label: (r) => r.label, label_name: (r) => className(DATA.entries[r.entry].run, r.label),
  prediction: (r) => r.prediction, prediction_name: (r) => className(DATA.entries[r.entry].run, r.prediction),
  verdict: (r) => r.verdict, decided_by: (r) => r.by, lower_margin: (r) => r.margin, adversarial_class: (r) => r.now,
  radius_proved: (r) => r.radius?.proved, radius_broken: (r) => r.radius?.broken, seconds: (r) => r.seconds,
};

// Spreadsheets run a text that starts with one of these signs; an apostrophe prevents that.
function csvCell(value) {
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : `${value ?? ""}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const toCsv = (list) => [Object.keys(CSV), ...list.map((record) => Object.values(CSV).map((read) => read(record)))]
  .map((row) => row.map(csvCell).join(",")).join("\n") + "\n";

function downloadLink(text, list) {
  return el("button", { type: "button", class: "link", onclick: () => {
    const url = URL.createObjectURL(new Blob([toCsv(list())], { type: "text/csv" }));
    el("a", { href: url, download: "records.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  } }, text);
}

// ---- The section ----

function missingNotes() {
  const { shown, total, missing } = DATA.images;
  return [...missing.filter(({ run }) => chosen.runs[run]).map(({ run, why }) =>
    el("p", { class: "note" }, `${DATA.runs[run].name}: no images are shown. ${why}`)),
  shown < total && !missing.length && el("p", { class: "note" }, `The page contains pictures of ${whole(shown)} of ${whole(total)} images, the most interesting first. `
    + "advibp report --images all includes all of them.")];
}

function imagesSection() {
  if (!DATA.entries.some((entry) => entry.confusion.length) && !DATA.images.missing.length) return;
  const node = section("images", "The images", "At the chosen eps. Select an image for its details. In a change, blue means brighter and orange "
    + "darker; for color images, mid-gray means no change.");
  const place = el("div");
  drawBrowser = () => redraw((one) => one.node === place);
  node.append(part(el("div"), missingNotes), part(place, browser, { eps: true, page: true }));
}
