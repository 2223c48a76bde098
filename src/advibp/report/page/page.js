// ---- The page, from top to bottom ----

function header() {
  contents = el("ul", { class: "contents" });
  const theme = el("button", { type: "button", id: "theme", title: "light or dark", "aria-label": "light or dark", onclick: turn }, "◐");
  document.getElementById("top").append(
    el("div", { class: "title" }, el("div", {}, el("p", { class: "over" }, "advibp report"), el("h1", {}, DATA.title)), theme), el("nav", {}, contents));
}

// ---- Light and dark ----

const darkSystem = matchMedia("(prefers-color-scheme: dark)");
let theme = null; // the reader's choice; null: that of the system
try { theme = localStorage.getItem("advibp-theme"); } catch { /* local files may have no storage */ }

function paint() {
  document.documentElement.dataset.theme = theme ?? (darkSystem.matches ? "dark" : "light");
  redraw((one) => one.figure);
}

function turn() {
  theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("advibp-theme", theme); } catch { /* the choice is lost when the page is closed */ }
  paint();
}

// ---- Which runs, which eps: one set of controls for all figures ----

function controls() {
  const bar = document.getElementById("controls");
  if (DATA.runs.length > 1) {
    bar.append(el("fieldset", { id: "runs" }, el("legend", {}, "runs"), DATA.runs.map((run, k) => {
      const box = el("input", { type: "checkbox", checked: true, onchange: () => { chosen.runs[k] = box.checked; redraw(); } });
      return el("label", { title: run.about }, box, swatch(k), el("span", {}, run.name));
    })));
  }
  if (DATA.eps.length) {
    const text = el("output", { for: "eps" }, epsText());
    const slider = el("input", { type: "range", id: "eps", min: 0, max: DATA.eps.length - 1, step: 1, value: chosen.eps,
      "aria-label": "eps", disabled: DATA.eps.length < 2, oninput: () => {
        chosen.eps = Number(slider.value);
        text.textContent = epsText();
        slider.setAttribute("aria-valuetext", epsText());
        redraw((one) => one.eps);
      } });
    bar.append(el("label", { id: "radius" }, "eps ", text, slider));
  }
  if (!bar.childNodes.length) bar.remove();
}

// ---- Sections ----

function glance() {
  const provers = [...new Set(DATA.entries.flatMap((e) => e.at.flatMap((at) => at.verified.map(([by]) => by))))];
  const node = section("glance", "At a glance");
  node.append(part(el("div"), collapseWarnings, { eps: true }), part(el("p", { class: "about" }), meaning, { eps: true }));
  node.append(part(el("div", { class: "cards" }), cards, { eps: true }));
  if (!DATA.eps.length) return;
  node.append(el("h3", {}, "The gap between attack and proof"),
    el("p", { class: "about" }, "The error under the worst possible attack lies within each bar, between the attack error and "
      + "the verified error. If the bar is short, nearly all images are decided."),
    figure(gapFigure, { key: [...gapKey(provers), ...zoomKey()], tall: true, eps: true }),
    part(el("div"), errorTable, { eps: true }), el("p", { class: "note" }, INTERVALS), part(el("div"), arithmeticNotes), words());
}

// A collapsed network has certificates that mean nothing. A class without a proof is easy to overlook.
function collapseWarnings() {
  const box = (name, messages) => messages.length ? [el("div", { class: "warning", role: "alert" },
    el("b", {}, DATA.runs.length > 1 ? `${name}: ` : "Warning: "), messages.length > 1 ? el("ul", {}, messages.map((message) => el("li", {}, message))) : messages[0])] : [];
  const ofEntries = (k) => shownEntries().filter((entry) => entry.run === k).flatMap((entry) =>
    (atChosen(entry)?.warnings ?? []).map((message) => entry.stage == null ? message : `Stage ${entry.stage}: ${message}`));
  return DATA.runs.flatMap((run, k) => chosen.runs[k] ? box(run.name, [...new Set([...run.warnings, ...ofEntries(k)])]) : []);
}

const COVERS = {
  float32: "proofs cover every evaluation of the network in float32, in any order of its sums",
  float64: "proofs cover every evaluation of the network in float64, in any order of its sums",
  real: "proofs are about real numbers and ignore rounding errors",
};

const arithmeticNotes = () => shownEntries().filter((entry) => entry.at.length).map((entry) =>
  el("p", { class: "note" }, named(entry), `: ${entry.arithmetic.split(" / ").map((kind) => COVERS[kind] ?? kind).join("; some ")}.`));

// Large errors at one eps make those at another hard to see.
function zoomKey() {
  const box = el("input", { type: "checkbox", id: "zoom", checked: chosen.zoom, onchange: () => { chosen.zoom = box.checked; redraw((one) => one.draw === gapFigure); } });
  return DATA.eps.length > 1 ? [el("label", {}, box, " scale to the chosen eps")] : [];
}

const WORDS = [
  ["eps", "largest change of each pixel, where pixels are numbers from 0 (black) to 1 (white); for tables, the largest radius of a feature"],
  ["standard", "images that are misclassified without a change"],
  ["attack", "images that are misclassified or broken by the attack: a lower bound of the error under the worst attack"],
  ["proved", "it is proved that no change of up to eps makes the network misclassify the image"],
  ["IBP, CROWN, …", "verifiers, cheapest first; each error counts the images that neither it nor an earlier one proved"],
  ["gap", "images that are neither proved nor broken"],
];

const words = () => el("details", {}, el("summary", {}, "Terms"),
  el("dl", {}, WORDS.map(([word, meaning]) => [el("dt", {}, word), el("dd", {}, meaning)])));

function training() {
  const panels = PANELS.filter((panel) => logged(panel).length);
  if (!panels.length) return;
  const node = section("training", "Training", "Means over each epoch.");
  node.append(part(el("div"), phaseKey), el("div", { class: "panels" }, panels.map((panel) =>
    figure(() => trainingFigure(panel), { title: panel.title,
      key: logged(panel).map((name) => [el("i", { class: `dash ${DASHES[Object.keys(panel.of).indexOf(name)]}` }), panel.of[name]]) }))));
}

const phaseKey = () => el("ul", { class: "key" },
  DATA.runs.length > 1 && shadedRun() >= 0 && el("li", {}, `phases of ${DATA.runs[shadedRun()].name}:`),
  [...new Set(phases().map(({ phase }) => phase))].map((phase) =>
    el("li", {}, el("i", { class: "swatch", style: PHASES[phase] && `background: var(--phase-${phase})` }), PHASES[phase] ?? phase)));

function build() {
  header();
  controls();
  DATA.sections.forEach(ownSection);
  if (DATA.runs.length) {
    glance();
    comparison();
    if (DATA.entries.length) overEps();
    if (DATA.entries.some((entry) => entry.at.some((at) => at.classes.length))) {
      section("classes", "Class by class", "The gap for the images of each class, at the chosen eps.")
        .append(figure(classFigure, { tall: true, eps: true, key: gapKey([ALL]) }), part(el("div"), classTable, { eps: true }));
      section("confusion", "Confusion matrix", "Labels and predictions of the unchanged images. Select a number to see its images.")
        .append(part(el("div", { class: "cards confusions" }), confusions));
    }
    if (DATA.entries.some((entry) => entry.at.some((at) => at.flow.length))) {
      section("cascade", "Decisions by check", "Each image passes through the checks, cheapest first, until one decides it. "
        + "The time of an image includes all checks that it passed through.")
        .append(part(el("div", { class: "cards" }), cascades, { eps: true }));
    }
    imagesSection();
    training();
    section("recipes", DATA.runs.length > 1 ? "Side by side" : "Recipe", DATA.runs.length > 1
      ? "Results of each run, and the keys of the recipes whose values differ." : "")
      .append(part(el("div"), differencesTable));
    section("again", "Run it again").append(part(el("div"), commands));
  }
  document.getElementById("foot").append(`advibp ${DATA.version}`);
}

build();
paint();
redraw();
darkSystem.addEventListener("change", paint);
// The records first, because they are small and need no figures.
unpack("records").then((text) => { RECORDS = JSON.parse(text); drawBrowser(); }).then(unpackPlotly).then(drawAll).catch((problem) => {
  document.getElementById("main").prepend(el("p", { class: "note", id: "problem" }, problem.message));
}).finally(() => { document.documentElement.dataset.ready = "yes"; });

// One figure at a time, so that the page can be scrolled in the meantime.
async function drawAll() {
  for (const one of parts.filter((each) => each.figure)) {
    drawFigure(one);
    await new Promise((next) => setTimeout(next));
  }
}
