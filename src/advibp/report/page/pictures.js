// ---- Pictures of inputs, drawn from sheets ----

// A sheet is a PNG with many pictures. It is decoded when one of them is drawn.
const decoded = new Map();
function decode(sheet) {
  if (!decoded.has(sheet)) {
    const image = new Image();
    image.src = sheet.uri;
    decoded.set(sheet, image.decode().then(() => image));
  }
  return decoded.get(sheet);
}

async function pixels(sheets, number) {
  const sheet = sheets.find(({ first, count }) => first <= number && number < first + count);
  const { width, height, columns } = sheet, cell = number - sheet.first;
  const canvas = el("canvas", { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(await decode(sheet), (cell % columns) * width, Math.floor(cell / columns) * height, width, height, 0, 0, width, height);
  return { gray: sheet.gray, data: context.getImageData(0, 0, width, height) };
}

// A canvas that `compute` fills later. `compute` returns ImageData.
function canvasOf(compute, label) {
  const canvas = el("canvas", { role: "img", "aria-label": label, width: 1, height: 1 });
  compute().then((data) => {
    canvas.width = data.width;
    canvas.height = data.height;
    canvas.getContext("2d").putImageData(data, 0, 0);
    canvas.dataset.drawn = "yes";
  });
  return canvas;
}

const imageCanvas = (number, label) => canvasOf(async () => (await pixels(DATA.images.sheets, number)).data, label);

// The stored change of a color channel: 128 is 0, 255 is eps.
const signed = (value) => Math.max(-1, Math.min(1, (value - 128) / 127));

function adversarialCanvas(picture, change, eps) {
  return canvasOf(async () => {
    const [{ data }, { data: delta }] = await Promise.all([pixels(DATA.images.sheets, picture), pixels(DATA.images.changes, change)]);
    for (let k = 0; k < data.data.length; k++) {
      if (k % 4 !== 3) data.data[k] += 255 * eps * signed(delta.data[k]); // the array clamps to 0 ... 255
    }
    return data;
  }, "adversarial example");
}

const DARKER = [213, 94, 0], BRIGHTER = [0, 114, 178];

// Gray images: blue is brighter, orange is darker, white is unchanged. Color images: mid-gray is unchanged.
function changeCanvas(change) {
  return canvasOf(async () => {
    const { gray, data } = await pixels(DATA.images.changes, change);
    for (let k = 0; gray && k < data.data.length; k += 4) {
      const part = signed(data.data[k]), towards = part > 0 ? BRIGHTER : DARKER;
      for (let c = 0; c < 3; c++) data.data[k + c] = 255 + Math.abs(part) * (towards[c] - 255);
    }
    return data;
  }, "the change, enlarged");
}

// The pictures of a record: the input and, if `all`, the adversarial example and the change. Inputs of other kinds than
// images, and images that are not in the page, have a blank instead.
function picturesOf(record, all) {
  if (record.row != null) return [featureTable(record, all ? 40 : 4, all)];
  if (record.picture == null) return [el("span", { class: "blank" }, "not in the page")];
  const label = `test image ${record.index}`;
  const clean = imageCanvas(record.picture, label);
  return all && record.change != null ? [clean, adversarialCanvas(record.picture, record.change, record.eps), changeCanvas(record.change)] : [clean];
}

// The row of a table: names and values of `most` features, those that change most first; with `shares`, also the change relative to its radius.
function featureTable(record, most, shares) {
  const { names, scales, rows } = DATA.images.features, run = DATA.entries[record.entry].run;
  const before = rows[record.row], after = record.changed;
  const share = (k) => after && after[k] !== before[k] ? (after[k] - before[k]) / (record.eps * scales[run][k]) : 0;
  const order = before.map((_, k) => k);
  if (after) order.sort((a, b) => Math.abs(share(b)) - Math.abs(share(a)));
  const left = before.length - most, percent = (part) => part === 0 ? "" : `${part > 0 ? "+" : "−"}${Math.round(100 * Math.min(1, Math.abs(part)))} %`;
  const number = (text) => el("td", { class: "number" }, text);
  return el("span", { class: "features" }, el("table", {},
    el("thead", {}, el("tr", {}, ["feature", "value", ...(after ? ["changed to", ...(shares ? ["of the radius"] : [])] : [])].map((name) => el("th", {}, name)))),
    el("tbody", {}, order.slice(0, most).map((k) => el("tr", {}, el("td", {}, names[run][k] ?? `x${k}`), number(significant(before[k])),
      after && [number(after[k] === before[k] ? "" : significant(after[k])), shares && number(percent(share(k)))])))),
    left > 0 && el("small", {}, `and ${left} more features`));
}
