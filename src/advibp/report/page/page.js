// ---- The page, from top to bottom ----

function header() {
  contents = el("ul", { class: "contents" });
  const theme = el("button", { type: "button", id: "theme", title: "light or dark", onclick: turn }, "◐");
  document.getElementById("top").append(
    el("div", { class: "title" }, el("div", {}, el("p", { class: "over" }, "advibp report"), el("h1", {}, DATA.title)), theme), el("nav", {}, contents));
}

// ---- Light and dark ----

const darkSystem = matchMedia("(prefers-color-scheme: dark)");
let theme = null; // what the reader asked for; null: the system's
try { theme = localStorage.getItem("advibp-theme"); } catch { /* pages from a disk may have no storage */ }

function paint() {
  document.documentElement.dataset.theme = theme ?? (darkSystem.matches ? "dark" : "light");
  redraw((one) => one.figure);
}

function turn() {
  theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("advibp-theme", theme); } catch { /* then it lasts as long as the page */ }
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
    const said = el("output", { for: "eps" }, epsSaid());
    const slider = el("input", { type: "range", id: "eps", min: 0, max: DATA.eps.length - 1, step: 1, value: chosen.eps,
      "aria-label": "eps", disabled: DATA.eps.length < 2, oninput: () => {
        chosen.eps = Number(slider.value);
        said.textContent = epsSaid();
        slider.setAttribute("aria-valuetext", epsSaid());
        redraw((one) => one.eps);
      } });
    bar.append(el("label", { id: "radius" }, "eps ", said, slider));
  }
  if (!bar.childNodes.length) bar.remove();
}

// ---- Sections ----

function glance() {
  const provers = [...new Set(DATA.entries.flatMap((e) => e.at.flatMap((at) => at.verified.map(([by]) => by))))];
  const node = section("glance", "At a glance");
  node.append(part(el("p", { class: "about" }), meaning, { eps: true }));
  node.append(part(el("div", { class: "cards" }), cards, { eps: true }));
  if (!DATA.eps.length) return;
  node.append(el("h3", {}, "The gap between attack and proof"),
    el("p", { class: "about" }, "The true error under the worst change lies inside each bar: the attack found at least its "
      + "lower end, and the proof allows at most its upper end. A short bar says that nearly everything is decided."),
    figure(gapFigure, { key: [...gapKey(provers), ...zoomKey()], tall: true, eps: true }),
    part(el("div"), errorTable, { eps: true }), part(el("div"), arithmeticNotes), words());
}

const COVERS = {
  float32: "proofs cover every evaluation of the network in float32, whatever the order of its sums",
  float64: "proofs cover every evaluation of the network in float64, whatever the order of its sums",
  real: "proofs are about real numbers; they ignore that the network rounds",
};

const arithmeticNotes = () => shownEntries().filter((entry) => entry.at.length).map((entry) =>
  el("p", { class: "note" }, named(entry), `: ${entry.arithmetic.split(" / ").map((kind) => COVERS[kind] ?? kind).join("; some ")}.`));

// Large errors at one eps make those at another too small to see.
function zoomKey() {
  const box = el("input", { type: "checkbox", id: "zoom", checked: chosen.zoom, onchange: () => { chosen.zoom = box.checked; redraw((one) => one.draw === gapFigure); } });
  return DATA.eps.length > 1 ? [el("label", {}, box, " scale to the chosen eps")] : [];
}

const WORDS = [
  ["eps", "how much each pixel may change, pixels being numbers from 0 (black) to 1 (white)"],
  ["standard", "images that the network gets wrong as they are"],
  ["attack", "images that are wrong, or that an attack found a change for which makes them wrong: a lower bound"],
  ["proved", "no change of up to eps makes the image wrong, whatever the attack: a theorem, for this image"],
  ["IBP, CROWN, …", "verifiers, cheapest first; each error counts images that neither it nor one before it proved"],
  ["gap", "images that are neither proved nor broken: what nobody knows"],
];

const words = () => el("details", {}, el("summary", {}, "What the words mean"),
  el("dl", {}, WORDS.map(([word, meaning]) => [el("dt", {}, word), el("dd", {}, meaning)])));

function overEps() {
  const node = section("accuracy", "Certified accuracy over eps", "How many images stay right as the change that is allowed grows.");
  const from = DATA.entries.filter((entry) => entry.curve);
  node.append(figure(accuracyFigure, { tall: true, eps: true, key: [["— proved"], ["··· not broken by the attack"],
    from.length > 0 && ["◆ with all verifiers, where certified"]].filter(Boolean) }));
  if (!from.length) return;
  const radii = section("radii", "How far each image is safe",
    "Upwards: the largest eps at which an image is proved. Downwards: the smallest at which the attack broke it.");
  radii.append(figure(radiusFigure, { tall: true }), part(el("div"), radiusNotes));
}

const radiusNotes = () => shownEntries().filter((entry) => entry.histogram).map((entry) => {
  const { right, median, never } = entry.histogram, wrong = entry.radiiOf - right;
  return el("p", { class: "note" }, named(entry), `: half of the ${whole(right)} images that are right are proved up to eps `
    + `${significant(median)} by ${listed(entry.radiiBy.split(" ").map(stageName))}`
    + (wrong ? `; ${whole(wrong)} are wrong as they are and not drawn` : "")
    + (never ? `; ${whole(never)} were never broken` : "") + ".");
});

function training() {
  const panels = PANELS.filter((panel) => logged(panel).length);
  if (!panels.length) return;
  const node = section("training", "Training", "Means of each epoch.");
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
    if (DATA.entries.length) overEps();
    if (DATA.entries.some((entry) => entry.at.some((at) => at.classes.length))) {
      section("classes", "Class by class", "The same gap for the images of each class, at the chosen eps.")
        .append(figure(classFigure, { tall: true, eps: true, key: gapKey([ALL]) }));
    }
    if (DATA.entries.some((entry) => entry.at.some((at) => at.flow.length))) {
      section("cascade", "Who decided, and at what cost", "Each image goes from stage to stage, cheapest first, until one decides. "
        + "The time of an image is that of all stages it went through.")
        .append(part(el("div", { class: "cards" }), cascades, { eps: true }));
    }
    if (DATA.images.shown.length || DATA.images.missing.length) {
      section("images", "The images", "At the chosen eps. In a change, blue pixels got brighter and orange ones darker; in "
        + "that of a colour image, mid-grey is no change.").append(part(el("div"), galleries, { eps: true }));
    }
    training();
    section("recipes", DATA.runs.length > 1 ? "Side by side" : "Recipe", DATA.runs.length > 1
      ? "What came of each run, and the keys of their recipes whose values differ." : "")
      .append(part(el("div"), differencesTable));
    section("again", "Run it again").append(part(el("div"), commands));
  }
  document.getElementById("foot").append(`advibp ${DATA.version}`);
}

build();
paint();
redraw();
darkSystem.addEventListener("change", paint);
unpackPlotly().then(drawAll).catch((problem) => {
  document.getElementById("main").prepend(el("p", { class: "note", id: "problem" }, problem.message));
}).finally(() => { document.documentElement.dataset.ready = "yes"; });

// One figure after the other, so that the page can be read and scrolled meanwhile.
async function drawAll() {
  for (const one of parts.filter((each) => each.figure)) {
    drawFigure(one);
    await new Promise((next) => setTimeout(next));
  }
}
