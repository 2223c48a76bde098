// ---- Test images ----

const KINDS = [
  ["proved", "Proved", "smallest margin first"],
  ["broken", "Broken", "the image, the adversarial example, and the change, enlarged"],
  ["open", "Undecided", "largest lower margin first"],
];

function galleries() {
  const eps = DATA.eps[chosen.eps]?.eps;
  const found = shownEntries().map((entry) => ({ entry, shown: DATA.images.shown.find((one) =>
    one.run === entry.run && one.stage === entry.stage && one.eps === eps) })).filter(({ shown }) => shown);
  const why = DATA.images.missing.filter(({ run }) => chosen.runs[run])
    .map(({ run, why }) => el("p", { class: "note" }, `${DATA.runs[run].name}: no images are shown. ${why}`));
  if (!found.length && !why.length) return el("p", { class: "empty" }, "There are no images to show for the current choices.");
  return [...why, ...found.map(({ entry, shown }) => el("article", { class: "card" }, el("h3", {}, named(entry)),
    KINDS.map(([kind, title, about]) => shown[kind].length > 0 && [
      el("h4", {}, title, el("small", {}, ` ${about}`)),
      el("div", { class: `gallery ${kind}` }, shown[kind].map((image) => picture(entry.run, image))),
    ])))];
}

function picture(run, image) {
  const img = (number, alt) => el("img", { src: DATA.images.pictures[number], alt });
  const truth = className(run, image.label), now = image.now == null ? null : className(run, image.now);
  const title = [`test image ${image.index}`, `class ${truth}`, image.by && `${VERDICT_LABELS[image.verdict]} by ${checkName(image.by)}`,
    image.margin != null && `proved margin ${significant(image.margin)}`].filter(Boolean).join("\n");
  const caption = now == null ? truth : [truth, " → ", el("b", {}, now)];
  return el("figure", { class: "picture", title },
    el("div", {}, img(image.clean, `test image ${image.index}, class ${truth}`),
      image.adversarial != null && [img(image.adversarial, "changed"), img(image.change, "the change, enlarged")]),
    el("figcaption", {}, caption, el("small", {}, ` #${image.index}`)));
}
