// ---- Text and tables, which are shown before the figures ----

// A table. On a narrow screen each row becomes a block with the names of the columns, so that nothing is cut off.
// Cells are strings, elements or lists of them; `marked` rows are highlighted; columns from `numbers` on are right-aligned.
function table(head, rows, { marked = () => false, numbers = 1, titles = 1 } = {}) {
  const names = head.map((name) => typeof name === "string" ? name : name.textContent);
  const cell = (tag, value, k) => el(tag, { class: k >= numbers ? "number" : k < titles ? "first" : false,
    "data-label": tag === "td" && k >= titles && names[k],
    "data-title": tag === "td" && k < titles && names[k] === "eps" && "eps", scope: tag === "th" && "col" }, value);
  return el("div", { class: "wide" },
    el("table", { class: head.length > 2 ? "stack" : "pair" },
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
  const words = command.split(" ").flatMap((word) => [el("span", {}, word), " "]); // lines break only between words
  return el("div", { class: "command" }, el("code", {}, words), copied);
}

// ---- At a glance ----

// "9,685 of 10,000 test images are proved at eps 0.1 by IBP …"
function sentence(at) {
  const count = (...verdicts) => verdicts.reduce((sum, verdict) => sum + (at.counts[verdict] ?? 0), 0);
  const [proved, broken, wrong] = [count("robust"), count("falsified"), count("misclassified", "error")];
  const open = at.images - proved - broken - wrong;
  const by = at.verified.map(([name]) => checkName(name));
  const searched = at.flow.filter((one) => one.verdict === "falsified" && CHECKS.get(one.by)?.kind !== "attack");
  const later = searched.reduce((sum, one) => sum + one.images, 0);
  return el("p", { class: "sentence" },
    el("b", {}, `${whole(proved)} of ${whole(at.images)} test images are proved at eps ${epsText()} `),
    `by ${listed(by)}. The attack broke ${whole(broken - later)}`,
    later > 0 && `, and ${listed([...new Set(searched.map((one) => checkName(one.by)))])} ${whole(later)} more`, `; ${whole(open)} ${open === 1 ? "is" : "are"} undecided; `,
    `${whole(wrong)} ${wrong === 1 ? "is" : "are"} misclassified without a change.`);
}

function proportions(at) {
  const there = VERDICTS.filter((verdict) => at.counts[verdict]);
  const text = (verdict) => `${whole(at.counts[verdict])} ${VERDICT_LABELS[verdict]}`;
  return [
    el("div", { class: "proportions", role: "img", "aria-label": there.map(text).join(", ") },
      there.map((verdict) => el("i", {
        class: `v-${verdict}`, style: `flex-grow: ${at.counts[verdict]}`, title: text(verdict),
      }))),
    el("ul", { class: "key" }, there.map((verdict) =>
      el("li", {}, el("i", { class: `swatch v-${verdict}` }), text(verdict)))),
  ];
}

const meaning = () => DATA.eps.length > 0 && `Proved at eps ${epsText()}: no change of its ${DATA.entries.some(({ ownSet }) => ownSet) ? `features, of which the largest radius is ${epsText()},` : `pixels by up to ${epsText()}`} makes `
  + "the network misclassify the image. Undecided: neither proved nor broken.";

function cards() {
  const entries = shownEntries();
  if (!entries.length) return el("p", { class: "empty" }, nothingShown());
  return entries.map((entry) => {
    const at = atChosen(entry), run = DATA.runs[entry.run];
    return el("article", { class: "card" },
      el("h3", {}, named(entry)), el("p", { class: "about" }, run.about),
      at ? [el("p", { class: "big" }, percent(100 * (at.counts.robust ?? 0) / at.images, 1), el("small", {}, " proved")),
        accuracy(at) && el("p", { class: "interval" }, `95\u00a0% interval: ${between(...accuracy(at).interval)}\u00a0%`),
        sentence(at), proportions(at)]
        : el("p", { class: "empty" }, entry.at.length
          ? `Not certified at eps ${epsText()}.` : "Only radii were measured; run advibp certify for verdicts."));
  });
}

const nothingShown = () => DATA.entries.length ? "No run is selected; select one above."
  : "Nothing is certified yet; run advibp certify RUN.";

function errorTable() {
  const entries = shownEntries(), rows = [];
  const provers = [...new Set(DATA.entries.flatMap((e) => e.at.flatMap((at) => at.verified.map(([by]) => by))))];
  provers.sort(byCheck);
  for (const { eps, text } of DATA.eps) {
    for (const entry of entries) {
      const at = entry.at.find((one) => one.eps === eps);
      const verified = (by) => at.verified.find(([name]) => name === by);
      if (at) rows.push({ eps, cells: [text, named(entry), whole(at.images), withInterval(at.standard, at.intervals.standard),
        withInterval(at.attack, at.intervals.attack),
        ...provers.map((by) => withInterval(verified(by)?.[1], verified(by)?.slice(2))), gap(at).toFixed(2)] });
    }
  }
  const head = ["eps", "run", "images", "standard", "attack", ...provers.map(checkName), "gap"];
  return table(head, rows.map((row) => row.cells),
    { numbers: 2, titles: 2, marked: (n) => rows[n].eps === DATA.eps[chosen.eps].eps });
}

const INTERVALS = "Small numbers: Wilson's confidence interval, 95\u00a0%, for other images from the same distribution.";

// ---- Classes ----

function classTable() {
  const rows = [];
  for (const entry of shownEntries()) {
    for (const one of atChosen(entry)?.classes ?? []) {
      rows.push({ label: one.label, cells: [fullClass(entry.run, one.label), named(entry), whole(one.images),
        withInterval(one.standard, one.intervals.standard), withInterval(one.attack, one.intervals.attack),
        withInterval(one.verified[0][1], one.verified[0].slice(2))] });
    }
  }
  rows.sort((a, b) => a.label - b.label);
  return el("details", {}, el("summary", {}, "Errors of each class as a table"),
    table(["class", "run", "images", "standard", "attack", "not proved"], rows.map((row) => row.cells), { numbers: 2, titles: 2 }),
    el("p", { class: "note" }, INTERVALS));
}

// ---- The cascade: decisions by check ----

function cascades() {
  const entries = shownEntries().filter((entry) => atChosen(entry)?.flow.length);
  if (!entries.length) return el("p", { class: "empty" }, `The deciding checks at eps ${epsText()} are unknown.`);
  return entries.map((entry) => el("article", { class: "card" }, el("h3", {}, named(entry)), flow(atChosen(entry), entry.attack)));
}

const share = (part) => (part > 0 && part < 0.01 ? "< 1 %" : `${Math.round(100 * part)} %`);

// A row for each check, split into the images that it decided and the images that it passed on.
function flow(at, attack) {
  const time = at.flow.reduce((sum, one) => sum + one.images * one.seconds, 0);
  const used = [attack.split(" ")[0], ...at.verified.map(([by]) => by), ...at.flow.map((one) => one.by)];
  const checks = [...new Set(used)].filter((by) => by !== "").sort(byCheck);
  let left = at.images;
  const rows = checks.map((by) => {
    const decided = at.flow.filter((one) => one.by === by), entered = left;
    const done = decided.reduce((sum, one) => sum + one.images, 0);
    const cost = decided.reduce((sum, one) => sum + one.images * one.seconds, 0);
    left -= done;
    return entered > 0 && el("li", {},
      el("div", { class: "check" }, el("b", {}, by == null ? "undecided" : checkName(by)),
        el("span", {}, `${whole(entered)} ${by == null ? "left" : entered === 1 ? "enters" : "enter"}`)),
      el("div", { class: "proportions" },
        decided.map((one) => el("i", { class: `v-${one.verdict}`, style: `flex-grow: ${one.images}`,
          title: `${whole(one.images)} ${VERDICT_LABELS[one.verdict]}` })),
        left > 0 && el("i", { class: "v-left", style: `flex-grow: ${left}`, title: `${whole(left)} go on` })),
      el("div", { class: "outcome" },
        decided.map((one) => el("span", {}, el("i", { class: `swatch v-${one.verdict}` }),
          `${whole(one.images)} ${VERDICT_LABELS[one.verdict]}`)),
        done ? el("span", { class: "cost" }, `${seconds(cost / done)} per image` + (time > 0 ? `, ${share(cost / time)} of the total time` : ""))
          : "no decision"));
  });
  return el("ol", { class: "flow" }, rows);
}

// ---- Comparison of runs, and their commands ----

function differencesTable() {
  const shown = DATA.runs.map((_, run) => run).filter((run) => chosen.runs[run]);
  const head = ["", ...shown.map((run) => el("span", { class: "named" }, swatch(run), DATA.runs[run].name))];
  const factNames = [...new Set(DATA.runs.flatMap((run) => run.facts.map(([name]) => name)))];
  const text = (run, name) => DATA.runs[run].facts.find((fact) => fact[0] === name)?.[1] ?? "–";
  const keys = (rows) => rows.map(({ key, values }) => [el("code", {}, key), ...shown.map((run) => values[run])]);
  const [differ, same] = [true, false].map((wanted) => DATA.recipes.filter((row) => row.differ === wanted));
  return [
    table(head, [...factNames.map((name) => [name, ...shown.map((run) => text(run, name))]), ...keys(differ)], { numbers: 99 }),
    el("details", {}, el("summary", {}, DATA.runs.length > 1 ? `${same.length} keys that are the same` : "All keys of the recipe"),
      el("dl", { class: "keys" }, same.map(({ key, values }) => el("div", {}, el("dt", {}, key), el("dd", {}, values[0]))))),
  ];
}

function commands() {
  return DATA.runs.map((run, k) => chosen.runs[k] && el("div", { class: "again" },
    el("h3", {}, el("span", { class: "named" }, swatch(k), run.name)),
    run.commands.length ? run.commands.map(commandLine) : el("p", { class: "empty" }, "The folder contains no command."),
    run.hardware && el("p", { class: "about" }, `Measured on ${run.hardware}.`)));
}

// ---- Additional sections ----

function ownSection(content, number) {
  const node = section(`section-${number}`, content.title);
  if (content.shows === "table") node.append(table(content.head, content.rows));
  else node.append(figure((div) => ownChart(content, div), { key: content.series.length > 1 && seriesKey(content) }));
  for (const note of content.notes) node.append(el("p", { class: "note" }, note));
  if (content.command) node.append(commandLine(content.command));
}

const seriesKey = (content) => content.series.map((one, k) => [el("i", { class: "swatch",
  style: `background: var(--run-${k % RUN_COLORS})` }), one.name]);
