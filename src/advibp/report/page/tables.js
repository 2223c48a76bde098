// ---- Text and tables, there before any figure ----

// A table that scrolls by itself where it is too wide; `cells` are strings or elements, `marked` rows stand out.
function table(head, rows, { marked = () => false, numbers = 1 } = {}) {
  const cell = (tag, value, k) => el(tag, { class: k >= numbers ? "number" : false }, value);
  return el("div", { class: "wide", tabindex: 0 },
    el("table", {},
      el("thead", {}, el("tr", {}, head.map((value, k) => cell("th", value, k)))),
      el("tbody", {}, rows.map((row, n) =>
        el("tr", { class: marked(n) ? "marked" : false }, row.map((value, k) => cell("td", value, k)))))));
}

function commandLine(command) {
  const copied = el("button", { type: "button", class: "copy", onclick: copy }, "copy");
  async function copy() {
    try {
      await navigator.clipboard.writeText(command);
      copied.textContent = "copied";
    } catch {
      copied.textContent = "select it, then Ctrl-C";
    }
    setTimeout(() => { copied.textContent = "copy"; }, 2000);
  }
  const words = command.split(" ").flatMap((word) => [el("span", {}, word), " "]); // a line is broken between words alone
  return el("div", { class: "command" }, el("code", {}, words), copied);
}

// ---- At a glance ----

// "9,685 of 10,000 test images are proved safe at eps 0.1 by IBP …"
function sentence(at) {
  const count = (...verdicts) => verdicts.reduce((sum, verdict) => sum + (at.counts[verdict] ?? 0), 0);
  const [proved, broken, wrong] = [count("robust"), count("falsified"), count("misclassified", "error")];
  const open = at.images - proved - broken - wrong;
  const by = at.verified.map(([name]) => stageName(name));
  const searched = at.flow.filter((one) => one.verdict === "falsified" && STAGES.get(one.by)?.kind !== "attack");
  const later = searched.reduce((sum, one) => sum + one.images, 0);
  return el("p", { class: "sentence" },
    el("b", {}, `${whole(proved)} of ${whole(at.images)} test images are proved safe at eps ${epsSaid()} `),
    `by ${listed(by)}. The attack broke ${whole(broken - later)}`,
    later > 0 && `, and ${listed([...new Set(searched.map((one) => stageName(one.by)))])} ${whole(later)} more`, `; ${whole(open)} ${open === 1 ? "is" : "are"} open; `,
    `${whole(wrong)} ${wrong === 1 ? "is" : "are"} wrong without any change.`);
}

function proportions(at) {
  const there = VERDICTS.filter((verdict) => at.counts[verdict]);
  const said = (verdict) => `${whole(at.counts[verdict])} ${SAID[verdict]}`;
  return [
    el("div", { class: "proportions", role: "img", "aria-label": there.map(said).join(", ") },
      there.map((verdict) => el("i", {
        class: `v-${verdict}`, style: `flex-grow: ${at.counts[verdict]}`, title: said(verdict),
      }))),
    el("ul", { class: "key" }, there.map((verdict) =>
      el("li", {}, el("i", { class: `swatch v-${verdict}` }), said(verdict)))),
  ];
}

const meaning = () => DATA.eps.length > 0 && `Proved safe at eps ${epsSaid()}: no change of up to ${epsSaid()} in any of its `
  + "pixels makes the network wrong about the image. Open: neither proved nor broken.";

function cards() {
  const entries = shownEntries();
  if (!entries.length) return el("p", { class: "empty" }, nothingShown());
  return entries.map((entry) => {
    const at = atChosen(entry), run = DATA.runs[entry.run];
    return el("article", { class: "card" },
      el("h3", {}, named(entry)), el("p", { class: "about" }, run.about),
      at ? [el("p", { class: "big" }, percent(100 * (at.counts.robust ?? 0) / at.images, 1), el("small", {}, " proved safe")),
        sentence(at), proportions(at)]
        : el("p", { class: "empty" }, entry.at.length
          ? `Not certified at eps ${epsSaid()}.` : "Radii were measured, but no verdicts: advibp certify gives them."));
  });
}

const nothingShown = () => DATA.entries.length ? "No run is chosen: tick one above."
  : "Nothing is certified yet: advibp certify RUN gives every test image a verdict.";

function errorTable() {
  const entries = shownEntries(), rows = [];
  const provers = [...new Set(DATA.entries.flatMap((e) => e.at.flatMap((at) => at.verified.map(([by]) => by))))];
  provers.sort(byStage);
  for (const { eps, said } of DATA.eps) {
    for (const entry of entries) {
      const at = entry.at.find((one) => one.eps === eps);
      if (at) rows.push({ eps, cells: [said, named(entry), whole(at.images), percent(at.standard), percent(at.attack),
        ...provers.map((by) => percent(at.verified.find(([name]) => name === by)?.[1])),
        gap(at).toFixed(2)] });
    }
  }
  const head = ["eps", "run", "images", "standard", "attack", ...provers.map(stageName), "gap"];
  return table(head, rows.map((row) => row.cells),
    { numbers: 2, marked: (n) => rows[n].eps === DATA.eps[chosen.eps].eps });
}

// ---- The cascade: who decided what ----

function cascades() {
  const entries = shownEntries().filter((entry) => atChosen(entry)?.flow.length);
  if (!entries.length) return el("p", { class: "empty" }, `Nothing is known of who decided at eps ${epsSaid()}.`);
  return entries.map((entry) => el("article", { class: "card" }, el("h3", {}, named(entry)), flow(atChosen(entry), entry.attack)));
}

const share = (part) => (part > 0 && part < 0.01 ? "< 1 %" : `${Math.round(100 * part)} %`);

// One row a stage: as wide as what entered it, split into what it decided and what it passed on.
function flow(at, attack) {
  const time = at.flow.reduce((sum, one) => sum + one.images * one.seconds, 0);
  const asked = [attack.split(" ")[0], ...at.verified.map(([by]) => by), ...at.flow.map((one) => one.by)];
  const stages = [...new Set(asked)].filter((by) => by !== "").sort(byStage);
  let left = at.images;
  const rows = stages.map((by) => {
    const decided = at.flow.filter((one) => one.by === by), entered = left;
    const done = decided.reduce((sum, one) => sum + one.images, 0);
    const cost = decided.reduce((sum, one) => sum + one.images * one.seconds, 0);
    left -= done;
    return entered > 0 && el("li", {},
      el("div", { class: "stage" }, el("b", {}, by == null ? "still open" : stageName(by)),
        el("span", {}, `${whole(entered)} ${by == null ? "left" : entered === 1 ? "enters" : "enter"}`)),
      el("div", { class: "proportions" },
        decided.map((one) => el("i", { class: `v-${one.verdict}`, style: `flex-grow: ${one.images}`,
          title: `${whole(one.images)} ${SAID[one.verdict]}` })),
        left > 0 && el("i", { class: "v-left", style: `flex-grow: ${left}`, title: `${whole(left)} go on` })),
      el("div", { class: "outcome" },
        decided.map((one) => el("span", {}, el("i", { class: `swatch v-${one.verdict}` }),
          `${whole(one.images)} ${SAID[one.verdict]}`)),
        done ? el("span", { class: "cost" }, `${seconds(cost / done)} an image` + (time > 0 ? `, ${share(cost / time)} of all time` : ""))
          : "decided nothing"));
  });
  return el("ol", { class: "flow" }, rows);
}

// ---- Runs beside each other, and how to run them again ----

function differencesTable() {
  const shown = DATA.runs.map((_, run) => run).filter((run) => chosen.runs[run]);
  const head = ["", ...shown.map((run) => el("span", { class: "named" }, swatch(run), DATA.runs[run].name))];
  const factNames = [...new Set(DATA.runs.flatMap((run) => run.facts.map(([name]) => name)))];
  const said = (run, name) => DATA.runs[run].facts.find((fact) => fact[0] === name)?.[1] ?? "–";
  const keys = (rows) => rows.map(({ key, values }) => [el("code", {}, key), ...shown.map((run) => values[run])]);
  const [differ, same] = [true, false].map((wanted) => DATA.recipes.filter((row) => row.differ === wanted));
  return [
    table(head, [...factNames.map((name) => [name, ...shown.map((run) => said(run, name))]), ...keys(differ)], { numbers: 99 }),
    el("details", {}, el("summary", {}, DATA.runs.length > 1 ? `${same.length} keys that are the same` : "All keys of the recipe"),
      el("dl", { class: "keys" }, same.map(({ key, values }) => el("div", {}, el("dt", {}, key), el("dd", {}, values[0]))))),
  ];
}

function commands() {
  return DATA.runs.map((run, k) => chosen.runs[k] && el("div", { class: "again" },
    el("h3", {}, el("span", { class: "named" }, swatch(k), run.name)),
    run.commands.length ? run.commands.map(commandLine) : el("p", { class: "empty" }, "Its folder does not say."),
    run.hardware && el("p", { class: "about" }, `Measured on ${run.hardware}.`)));
}

// ---- Sections that a command brought along ----

function ownSection(content, number) {
  const node = section(`section-${number}`, content.title);
  if (content.shows === "table") node.append(table(content.head, content.rows));
  else node.append(figure((div) => ownChart(content, div), { key: content.series.length > 1 && seriesKey(content) }));
  for (const note of content.notes) node.append(el("p", { class: "note" }, note));
  if (content.command) node.append(commandLine(content.command));
}

const seriesKey = (content) => content.series.map((one, k) => [el("i", { class: "swatch",
  style: `background: var(--run-${k % RUN_COLOURS})` }), one.name]);
