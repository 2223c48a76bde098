// ---- Comparison of runs, image by image ----

const WHAT = { right: "classified correctly", proved: "proved" };

function pairTable() {
  const eps = DATA.eps[chosen.eps]?.eps;
  const found = DATA.pairs.filter((pair) => pair.eps === eps && chosen.runs[pair.first] && chosen.runs[pair.other]);
  if (!found.length) return el("p", { class: "empty" }, `No two of the shown runs were certified on the same images at eps ${epsText()}, with proofs for the same arithmetic.`);
  const run = (k) => el("span", { class: "named" }, swatch(k), DATA.runs[k].name);
  return table(["first run", "second run", "", "images", "both", "only the first", "only the second", "McNemar's test"],
    found.map((pair) => [run(pair.first), run(pair.other), WHAT[pair.what], whole(pair.images), whole(pair.both),
      whole(pair.only_first), whole(pair.only_other), pair.only_first + pair.only_other ? el("b", {}, pair.p) : "no difference"]),
    { numbers: 3, titles: 3 });
}

function comparison() {
  if (!DATA.pairs.length) return;
  section("pairs", "Do the runs differ?", "Counts of the images that both runs were certified on, at the chosen eps.")
    .append(part(el("div"), pairTable, { eps: true }), el("p", { class: "note" }, "p: p-value of McNemar's exact test, two-sided, on the "
      + "images of only one of the two runs. A small p means that the difference is probably not due to the choice of the test images. "
      + "The test is about these two networks and other images, not about other seeds."
      + (DATA.pairs.length > 4 ? " With many comparisons, some p are small by chance." : "")));
}
