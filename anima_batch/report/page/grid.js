
// The grid: two axes as rows and columns, the others as filters.
const axes = new Map(data.axes.map((axis, place) => [axis.key, { ...axis, place }]));
const view = { rows: data.rows, columns: data.columns, filters: new Map(), words: "", state: "", tile: 0 };
const grid = find("grid");
const PARTS = ["sampler", "steps", "policy"];
let shown = [];

const valueOf = (image, key) => image.at[axes.get(key).place];

function chooser(label, options, value, change, className = "") {
  const select = make("select", { "aria-label": label }, ...options.map(([key, text]) => make("option", { value: key }, text)));
  select.value = value;
  select.addEventListener("change", () => change(select.value));
  return make("label", { class: className }, label, select);
}

function shorten(text, length = 60) {
  return text.length > length ? `${text.slice(0, length)}\u2026` : text;
}

function showTools() {
  const names = [...axes.values()].map((axis) => [axis.key, axis.label]);
  const arrange = (side, other) => (key) => {
    if (key && view[other] === key) view[other] = view[side];
    view[side] = key;
    view.filters.delete(key);
    showTools();
    showGrid();
  };
  const search = make("input", { type: "search", "aria-label": "search", placeholder: "prompt, seed, name", title: "/", ".value": view.words });
  search.addEventListener("input", () => {
    view.words = search.value;
    showGrid();
  });
  const states = [["", "all"], ["flagged", "flagged"], ["failed", "failed"], ["changed", "changed since"]];
  const some = states.filter(([key]) => !key || images.some((image) => isIn(image, key)));
  const size = make("input", { type: "range", "aria-label": "size", min: 64, max: 320, step: 8, ".value": tileWidth() });
  size.addEventListener("input", () => {
    view.tile = Number(size.value);
    grid.style.setProperty("--tile", `${view.tile}px`);
  });
  const filters = [...axes.values()]
    .filter((axis) => isFilter(axis.key))
    .map((axis) => {
      const options = axis.values.map((value, place) => [String(place), shorten(value.label)]);
      const set = view.filters.has(axis.key);
      return chooser(axis.label, [["", "all"], ...options], set ? String(view.filters.get(axis.key)) : "", (value) => {
        if (value === "") view.filters.delete(axis.key);
        else view.filters.set(axis.key, Number(value));
        showTools();
        showGrid();
      }, set ? "set" : "");
    });
  const focused = [...find("tools").querySelectorAll("select, input")].indexOf(document.activeElement);
  find("tools").replaceChildren(
    make("label", {}, "search", search),
    chooser("rows", [["", "none"], ...names], view.rows, arrange("rows", "columns")),
    chooser("columns", [["", "none"], ...names], view.columns, arrange("columns", "rows")),
    ...filters,
    ...(some.length > 1
      ? [chooser("show", some, view.state, (value) => { view.state = value; showGrid(); }, view.state ? "set" : "")]
      : []),
    make("label", { class: "size" }, "size", size),
    make("output", { id: "number", "aria-live": "polite" }),
  );
  if (focused >= 0) find("tools").querySelectorAll("select, input")[focused]?.focus();
}

/** A setting is sampler, steps and policy at once: it is a filter, or those are, not both. */
function isFilter(key) {
  const inGrid = [view.rows, view.columns];
  if (inGrid.includes(key)) return false;
  if (view.filters.has(key) || !axes.has("setting")) return true;
  const apart = inGrid.some((name) => PARTS.includes(name));
  return key === "setting" ? !apart : apart || !PARTS.includes(key);
}

function isIn(image, state) {
  if (state === "flagged") return Boolean(image.compared?.flags.length);
  if (state === "failed") return image.record.status === "failed";
  return state !== "changed" || Boolean(image.fault);
}

function fits(image) {
  for (const [key, place] of view.filters) if (valueOf(image, key) !== place) return false;
  if (!isIn(image, view.state)) return false;
  const words = view.words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return true;
  const request = image.record.request;
  const text = `${image.stem} ${request.prompt} ${request.negative_prompt} ${request.seed} ${image.setting}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

/** The values of an axis that any shown image has; one nameless value where there is no axis. */
function valuesOf(key) {
  if (!key) return [null];
  const seen = new Set(shown.map((image) => valueOf(image, key)));
  return axes.get(key).values.map((_, place) => place).filter((place) => seen.has(place));
}

/** As wide as the fullest cell allows without a second line, within reason. */
function tileWidth() {
  if (view.tile) return view.tile;
  const counts = new Map();
  for (const image of shown) {
    const cell = `${view.rows && valueOf(image, view.rows)} ${view.columns && valueOf(image, view.columns)}`;
    counts.set(cell, (counts.get(cell) || 0) + 1);
  }
  const phone = window.innerWidth <= 760;
  const columns = Math.max(1, valuesOf(view.columns).length);
  if (!view.rows && !view.columns) return phone ? 104 : 144;
  // What style.css gives to the row's head, the scroll bar, a cell's padding and its gaps.
  const cell = (window.innerWidth - (phone ? 0 : 224)) / columns - (phone ? 20 : 21);
  // As many side by side as the fullest cell has, or fewer where they would be too small to be seen.
  let side = phone ? 1 : Math.min(4, Math.max(1, ...counts.values()));
  const width = () => Math.floor((cell - 8 * (side - 1)) / side);
  while (side > 1 && width() < 66) side -= 1;
  return Math.min(224, Math.max(66, width()));
}

function showGrid() {
  shown = images.filter(fits);
  const rows = valuesOf(view.rows);
  const columns = valuesOf(view.columns);
  const cells = new Map();
  for (const image of shown) {
    const key = `${view.rows ? valueOf(image, view.rows) : null} ${view.columns ? valueOf(image, view.columns) : null}`;
    if (!cells.has(key)) cells.set(key, []);
    cells.get(key).push(image);
  }
  grid.style.setProperty("--columns", columns.length);
  grid.style.setProperty("--tile", `${tileWidth()}px`);
  grid.className = view.rows || view.columns ? "" : "bare";
  const free = [...axes.values()].filter(
    (axis) => isFilter(axis.key) && !view.filters.has(axis.key),
  );
  const lines = shown.length && (view.rows || view.columns) ? [headLine(columns)] : [];
  for (const row of shown.length ? rows : []) {
    const line = make("div", { class: "line body", role: "row" });
    if (view.rows || view.columns) line.append(rowHead(row));
    for (const column of columns) {
      const found = cells.get(`${row} ${column}`) || [];
      line.append(make("div", { class: "cell", role: "cell" }, ...found.map((image) => tile(image, free))));
    }
    lines.push(line);
  }
  grid.replaceChildren(...lines);
  shown = [...grid.querySelectorAll(".tile")].map((element) => byStem.get(element.dataset.stem));
  grid.querySelector(".tile")?.setAttribute("tabindex", "0");
  find("none").hidden = shown.length > 0;
  find("number").textContent = shown.length === images.length ? `${shown.length} pictures` : `${shown.length} of ${images.length} pictures`;
}

function headLine(columns) {
  const corner = [view.rows, view.columns].filter(Boolean).map((key) => axes.get(key).label).join(" \u00d7 ");
  const heads = columns.map((place) => {
    const value = place === null ? null : axes.get(view.columns).values[place];
    return make("div", { role: "columnheader", title: value && (value.detail || value.label) }, value ? make("bdi", {}, value.label) : "pictures");
  });
  return make("div", { class: "line top", role: "row" }, make("div", { class: "row", role: "columnheader" }, corner), ...heads);
}

function rowHead(place) {
  if (place === null) return make("div", { class: "row", role: "rowheader" }, "all");
  const value = axes.get(view.rows).values[place];
  const head = make("div", { class: "row", role: "rowheader", title: value.detail || value.label });
  head.append(make("strong", { class: "clamp" }, value.label));
  if (value.detail) head.append(make("small", { class: "clamp" }, value.detail));
  return head;
}

function tile(image, free) {
  const { request, status, error, steps } = image.record;
  const name = free.length ? free.map((axis) => axis.values[image.at[axis.place]].label).join(" \u00b7 ") : image.setting;
  const frame = make("span", { class: "frame" });
  if (request.width !== request.height) frame.style.setProperty("--aspect", `${request.width} / ${request.height}`);
  if (image.thumbnail) frame.append(make("img", { src: image.thumbnail, alt: "", loading: "lazy", decoding: "async" }));
  else frame.append(make("span", {}, status === "failed" ? `failed: ${error.kind}` : "no picture"));
  const flags = image.compared?.flags || [];
  const mark = image.fault ? "changed since" : flags.length ? "flagged" : "";
  const told = [`${shorten(request.prompt, 120)}, seed ${request.seed}, ${image.setting}`];
  if (status === "failed") told.push(`failed: ${error.kind}`);
  if (mark) told.push(mark);
  return make(
    "button",
    { type: "button", class: "tile", tabindex: "-1", "data-stem": image.stem, "aria-label": told.join("; "), title: flags.join("\n") || null },
    frame,
    drawStrip(steps.passes || []),
    make("span", { class: "name" }, make("bdi", {}, shorten(name))),
    mark ? make("span", { class: image.fault ? "badge wrong" : "badge" }, "!") : null,
  );
}

/** The tile in a direction: left and right by order, up and down the nearest in the next line of tiles. */
function neighbour(from, key) {
  const tiles = [...grid.querySelectorAll(".tile")];
  const place = tiles.indexOf(from);
  if (key === "ArrowLeft") return tiles[place - 1];
  if (key === "ArrowRight") return tiles[place + 1];
  if (key === "Home") return tiles[0];
  if (key === "End") return tiles[tiles.length - 1];
  const down = key === "ArrowDown";
  const start = from.getBoundingClientRect();
  let best = null;
  let line = null;
  for (let next = place + (down ? 1 : -1); tiles[next]; next += down ? 1 : -1) {
    const box = tiles[next].getBoundingClientRect();
    const beyond = down ? box.top > start.top + 4 : box.top < start.top - 4;
    const row = tiles[next].closest(".line");
    if (line && row !== line) break;
    if (!beyond) continue;
    // Lines of tiles within a row count too: only the nearest of them is looked at.
    if (row !== from.closest(".line")) line = row;
    const far = Math.abs(box.left - start.left) + 4 * Math.abs(box.top - start.top);
    if (best === null || far < best.far) best = { tile: tiles[next], far };
  }
  return best?.tile;
}

function focusTile(element) {
  if (!element) return;
  grid.querySelector('.tile[tabindex="0"]')?.setAttribute("tabindex", "-1");
  element.setAttribute("tabindex", "0");
  element.focus();
  element.scrollIntoView({ block: "nearest", inline: "nearest" });
}
