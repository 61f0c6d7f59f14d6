
// One picture: large, with its manifest.
const dialog = find("picture");
let opened = null;

/** The manifest as it lies on disk, but for the number of digits in which numbers are written. */
function manifestText(image) {
  const { record } = image;
  const columns = Object.entries(record.steps);
  const steps = (columns[0]?.[1] || []).map((_, step) => Object.fromEntries(columns.map(([name, values]) => [name, values[step]])));
  const whole = {
    ...record,
    model_set: data.shared.model_set[record.model_set],
    environment: data.shared.environment[record.environment],
    sampling: { ...record.sampling, sigmas: data.shared.sigmas[record.sampling.sigmas] },
    steps,
  };
  // A seed may have more digits than a number here: it is kept as text, and stands as the number that it is.
  return JSON.stringify(whole, null, 2).replace(/^(    "seed": )"(\d+)"/m, "$1$2");
}

function facts(pairs) {
  const list = make("dl", { class: "facts" });
  for (const [name, value] of pairs) {
    if (value !== null && value !== undefined && value !== "") list.append(make("dt", {}, name), make("dd", {}, value));
  }
  return list;
}

function part(title, ...content) {
  return [make("h3", {}, title), ...content];
}

function tellRequest({ record }) {
  const { request, sampling } = record;
  const policy = Object.entries(sampling.policy).filter(([key, value]) => key !== "name" && key !== "kind" && value !== null);
  return part(
    "Request",
    make("p", { class: "prompt" }, request.prompt),
    facts([
      ["negative prompt", request.negative_prompt && make("span", { class: "prompt" }, request.negative_prompt)],
      ["seed", request.seed],
      ["size", `${request.width} \u00d7 ${request.height}`],
      ["sampler", `${request.sampler}, ${request.steps} steps, ${request.schedule}, shift ${request.shift}`],
      ["guidance", String(request.guidance_scale)],
      ["noise", request.noise],
      ["policy", [sampling.policy.name, sampling.policy.kind, ...policy.map(([key, value]) => `${key} ${value}`)].filter((word, place, words) => words.indexOf(word) === place).join(", ")],
    ]),
  );
}

function tellBeside(name, beside) {
  if (!beside) return [];
  const saved = `${beside.passes_saved} passes (${share(beside.passes_saved_share)}), ${fixed(beside.seconds_saved, 2)} s (${share(beside.seconds_saved_share)})`;
  const near = beside.same ? "the same pixels" : `${fixed(beside.psnr_db, 2)} dB, SSIM ${fixed(beside.ssim, 4)}, contrast ${fixed(beside.contrast, 3)}`;
  const parted = beside.first_different_step ? `at step ${beside.first_different_step}` : "";
  const cosines = beside.latent_cosines.filter(([, cosine]) => cosine < 1);
  const cosine = cosines.length ? `${cosines.map(([step, value]) => `${step}: ${value.toFixed(5)}`).join(", ")}` : "";
  return [
    [name, make("button", { type: "button", class: "link", "data-stem": beside.image }, beside.setting)],
    ["near", near],
    ["saved", saved],
    ["parted", parted],
    ["cosine by step", cosine],
  ];
}

function tellComparison({ compared }) {
  if (!compared || !(compared.twin || compared.converged)) return [];
  const { control } = compared;
  const gain = control && `${control.gain_db === null ? "" : `${control.gain_db < 0 ? "\u2212" : "+"}${Math.abs(control.gain_db).toFixed(2)} dB to ${control.judge} beside `}`;
  return part(
    "Comparison",
    ...compared.flags.map((flag) => make("p", { class: "flag" }, flag)),
    facts([
      ...tellBeside("twin", compared.twin),
      ...tellBeside("converged", compared.converged),
      ["control", control && make("span", {}, gain, make("button", { type: "button", class: "link", "data-stem": control.image }, control.setting))],
    ]),
  );
}

const PHASES = ["encode", "load", "init", "run", "host", "release", "decode"];

function tellTime({ record }) {
  const { timings, steps } = record;
  const whole = PHASES.reduce((sum, phase) => sum + Math.max(0, timings[phase]), 0) || 1;
  let place = 0;
  const bar = draw("svg", { class: "bar", viewBox: "0 0 1000 12", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const phase of PHASES) {
    const width = (Math.max(0, timings[phase]) / whole) * 1000;
    bar.append(draw("rect", { class: phase, x: place, y: 0, width, height: 12 }));
    place += width;
  }
  const legend = make("ul", { class: "legend" }, ...PHASES.filter((phase) => timings[phase] > 0.005).map((phase) => make("li", {}, make("i", { class: phase }), `${phase} ${timings[phase].toFixed(2)}`)));
  return part(
    `Time: ${timings.total.toFixed(2)} s, of it denoising ${timings.denoise.toFixed(2)} s`,
    bar,
    legend,
    ...(steps.seconds ? [drawSteps(steps)] : []),
  );
}

/** A bar a step, as high as it took long. */
function drawSteps(steps) {
  const longest = Math.max(...steps.seconds, 1e-9);
  const count = steps.seconds.length;
  const chart = draw("svg", { class: "chart", viewBox: `0 0 ${count} 100`, preserveAspectRatio: "none", role: "img" });
  chart.setAttribute("aria-label", `${steps.computed.filter(Boolean).length} of ${count} steps computed; the longest took ${longest.toFixed(2)} s`);
  steps.seconds.forEach((seconds, step) => {
    const height = Math.max(2, (seconds / longest) * 100);
    const kind = steps.computed[step] ? "computed" : "forecast";
    const told = `step ${steps.index[step]}, sigma ${steps.sigma[step].toFixed(3)}: ${kind}, ${steps.passes[step]} passes, ${seconds.toFixed(3)} s, largest ${fixed(steps.abs_max[step], 2)}`;
    chart.append(draw("rect", { class: kind, x: step + 0.06, y: 100 - height, width: 0.88, height }, draw("title", {}, told)));
  });
  const computed = steps.computed.filter(Boolean).length;
  const words = `steps 1 to ${count}: ${computed} computed, ${count - computed} forecast, at most ${longest.toFixed(2)} s`;
  return make("div", {}, chart, make("p", { class: "note" }, words));
}

function tellRest(image) {
  const { record } = image;
  const environment = data.shared.environment[record.environment];
  const set = data.shared.model_set[record.model_set];
  const worst = record.steps.abs_max ? Math.max(...record.steps.abs_max.map((value) => value ?? 0)) : null;
  const runs = record.runs.map((run) => `${run.started_at.slice(0, 19).replace("T", " ")}, steps ${run.first_step} to ${run.last_step}${run.resumed ? ", resumed" : ""}${run.board ? `, on ${run.board}` : ""}`);
  const versions = Object.entries(environment).filter(([, value]) => value !== null).map(([key, value]) => `${key} ${value}`);
  return part(
    "What made it",
    facts([
      ["model set", `${set.name} ${set.digest.slice(0, 12)}, ${set.license}`],
      ["environment", versions.join(", ")],
      ["runs", runs.join("; ")],
      ["checks", record.checks.finite ? `finite, largest latent ${fixed(worst, 2)}` : make("span", { class: "wrong" }, "not finite")],
      ["request id", make("code", {}, record.request_id)],
      ["SHA-256", record.image && make("code", {}, record.image.sha256)],
      ["pixels", record.image && make("code", {}, record.image.pixel_sha256)],
      ["files", make("span", {}, make("a", { href: image.manifest }, "manifest"), image.png ? " \u00b7 " : "", image.png ? make("a", { href: image.png }, "picture") : "")],
    ]),
  );
}

function stage(image) {
  const { record } = image;
  if (!image.png) {
    const { kind, step, message } = record.error;
    return make("div", { class: "stage" }, make("p", { class: "wrong" }, `Failed${step === null ? "" : ` at step ${step}`}: ${kind}`), make("p", { class: "prompt" }, message));
  }
  const picture = make("img", { src: image.png, alt: shorten(record.request.prompt, 200) });
  // The page may lie elsewhere than its pictures.
  picture.addEventListener("error", () => { if (picture.src !== image.thumbnail && image.thumbnail) picture.src = image.thumbnail; }, { once: true });
  const link = make("a", { href: image.png, title: "The picture itself" }, picture);
  const caption = make("div", { class: "caption" }, make("span", {}, image.setting));
  const twin = byStem.get((image.compared?.twin || image.compared?.converged)?.image);
  if (twin) {
    const flip = make("button", { type: "button", id: "flip", "aria-pressed": "false", title: "r" }, `Show ${twin.setting}`);
    flip.addEventListener("click", () => {
      const on = flip.getAttribute("aria-pressed") === "false";
      flip.setAttribute("aria-pressed", on);
      picture.src = on ? twin.png : image.png;
      caption.firstChild.textContent = on ? `${twin.setting} (twin)` : image.setting;
    });
    caption.append(flip);
  }
  return make("div", { class: "stage" }, link, drawStrip(record.steps.passes || []), caption);
}

function openPicture(stem) {
  const image = byStem.get(stem);
  if (!image) return;
  opened = image;
  const place = shown.indexOf(image);
  const step = (by, label, sign) => {
    const button = make("button", { type: "button", class: "plain", "aria-label": label, ".disabled": place < 0 || !shown[place + by] }, sign);
    button.addEventListener("click", () => turn(by));
    return button;
  };
  const close = make("button", { type: "button", class: "plain", "aria-label": "Close", title: "Esc" }, "\u2715");
  close.addEventListener("click", () => dialog.close());
  const manifest = make("details", {}, make("summary", {}, "Manifest"));
  manifest.addEventListener("toggle", () => {
    if (manifest.children.length === 1) manifest.append(make("pre", { tabindex: "0", "aria-label": "The manifest" }, manifestText(image)));
  });
  const told = make(
    "div",
    { class: "told", tabindex: "0", role: "region", "aria-label": "What is known of it" },
    image.fault ? make("p", { class: "wrong" }, `Changed since: ${image.fault}`) : null,
    ...image.record.warnings.map((warning) => make("p", { class: "flag" }, warning)),
    ...tellRequest(image), ...tellComparison(image), ...tellTime(image), ...tellRest(image), manifest,
  );
  dialog.replaceChildren(
    make("div", { class: "bar-top" }, make("h2", { id: "picture-title" }, make("bdi", {}, stem)), step(-1, "Previous picture", "\u2190"), step(1, "Next picture", "\u2192"), close),
    stage(image),
    told,
  );
  if (!dialog.open) dialog.showModal();
  close.focus();
}

function turn(by) {
  const next = shown[shown.indexOf(opened) + by];
  if (next && shown.includes(opened)) openPicture(next.stem);
}
