"use strict";
// Text from a run reaches the page through textContent, and Vega as data, but never as markup.
const given = JSON.parse(document.getElementById("given").textContent);
let data = given.data;
const state = {
  by: "step", metric: null, hidden: new Set(),
  text: { run: null, text: 0, rate: null, token: null },
  replay: { run: 0, text: 0, at: 0, playing: null, touched: false },  // until it is touched, it shows the middle step
};

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "on") for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
    else if (key === "style") for (const [name, each] of Object.entries(value)) made.style.setProperty(name, each);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
const runs = () => data.runs || [];
const colour = (i) => given.palette[i % given.palette.length];
const shown = (row) => (row.run === undefined || !state.hidden.has(row.run)) && (row.metric === undefined || row.metric === state.metric);
const fixed = (value, digits) => (value === null || value === undefined ? "—" : value.toFixed(digits));
const count = (value, what) => `${value.toLocaleString("en")} ${what}${value === 1 ? "" : "s"}`;
// Text between backticks is code; a number and its error stay on one line.
const words = (sentence) => sentence.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part.replaceAll(" ± ", "\u00a0±\u00a0")));

function table(columns, rows, { label, apart = 0 } = {}) {
  const looks = columns.map((_, i) => rows.length > 0 && rows.every((row) => /^[\d\s.,±+−%[\]—-]+$/.test(row[i])));
  const cell = (tag, text, i) => el(tag, { class: looks[i] ? "number" : null, dir: looks[i] ? null : "auto" }, text);
  return el("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": label },
    el("table", {},
      el("thead", {}, el("tr", {}, ...columns.map((text, i) => { const th = cell("th", text, i); th.scope = "col"; return th; }))),
      el("tbody", {}, ...rows.map((row, n) => el("tr", { class: n < apart ? "apart" : null }, ...row.map((text, i) => cell("td", text, i)))))));
}

// Charts: each is drawn once and later only receives new rows.

const charts = {};
function chart(name, caption, panel) {  // `panel`: one of several panels, if the rows have panels
  const chart = (charts[panel === undefined ? name : `${name} ${panel}`] ??= { host: el("div", { class: `chart ${name}` }), name, panel, view: null, lean: null });
  chart.stale = true;
  return el("figure", {}, chart.host, caption ? el("figcaption", {}, caption) : null);
}
async function draw(name) {
  const one = charts[name], { table, specs } = given.charts[one.name];
  const by = specs[state.by] ? state.by : Object.keys(specs)[0];
  one.stale = false;
  const rows = data.tables[table].filter((row) => shown(row) && row.panel === one.panel), lean = legends(specs[by], rows);
  if (one.view && one.lean === lean) {
    await one.view.data(table, structuredClone(rows)).runAsync();
    return;
  }
  one.lean = lean;
  one.view?.finalize();
  one.view = null;
  const spec = { ...JSON.parse(lean), config: given.config, datasets: { ...specs[by].datasets, [table]: structuredClone(rows) } };
  const made = await vegaEmbed(one.host, spec, { actions: false, renderer: "svg", logLevel: 1 /* errors only */ });
  one.view = made.view;
}
// A specification without legends that have only one entry.
const legends = (spec, rows) => JSON.stringify(spec, (key, value) =>
  (key === "strokeDash" || key === "shape") && value?.field && new Set(rows.map((row) => row[value.field])).size < 2 ? { ...value, legend: null } : value);
let drawing = Promise.resolve();
function drawAll() {  // one after the other, so that the page responds in between
  const stale = Object.keys(charts).filter((name) => charts[name].stale && charts[name].host.isConnected);
  drawing = drawing.then(async () => {
    for (const name of stale) {
      if (!charts[name].stale) continue;
      try {
        await draw(name);
      } catch (error) {  // draw the other charts anyway, and this one when it is stale again
        console.error(error);
        charts[name].view?.finalize();
        charts[name].view = null;
        charts[name].host.replaceChildren(el("p", { class: "missing" }, "This chart could not be drawn."));
      }
      await new Promise((next) => setTimeout(next));
    }
  });
  return drawing;
}
function redraw(names) {
  for (const name of names) if (charts[name]) charts[name].stale = true;
  return drawAll();
}
function legend(...tables) {  // of the runs with rows in these tables
  if (runs().length < 2) return null;
  const there = new Set(tables.flatMap((name) => data.tables[name].filter(shown).map((row) => row.run)));
  return el("p", { class: "legend", "data-of": tables.join() }, ...runs().map((run, i) => !there.has(run.name) ? null :
    el("span", { dir: "auto" }, el("i", { class: "dot", style: { "--c": colour(i) } }), run.name)));
}

function toggles() {
  if (runs().length < 2) return null;
  return el("div", { class: "controls chips", role: "group", "aria-label": "Runs shown" }, ...runs().map((run, i) =>
    el("button", {
      class: "chip", type: "button", "aria-pressed": String(!state.hidden.has(run.name)), dir: "auto",
      on: { click: (event) => {
        if (!state.hidden.delete(run.name)) state.hidden.add(run.name);
        event.currentTarget.setAttribute("aria-pressed", String(!state.hidden.has(run.name)));
        for (const each of document.querySelectorAll(".legend")) each.replaceWith(legend(...each.dataset.of.split(",")));
        redraw(Object.keys(charts));
      } },
    }, el("i", { class: "dot", style: { "--c": colour(i) } }), run.name)));
}
function choice(label, options, chosen, choose) {
  const buttons = options.map(([value, text]) => el("button", {
    type: "button", "aria-pressed": String(value === chosen), on: { click: (event) => {
      for (const each of buttons) each.setAttribute("aria-pressed", String(each === event.currentTarget));
      choose(value);
    } },
  }, text));
  return el("div", { class: "choice", role: "group", "aria-label": label }, ...buttons);
}
function selection(label, options, chosen, choose) {
  if (options.length < 2) return null;
  return el("label", {}, label, el("select", { on: { change: (event) => choose(Number(event.target.value)) } },
    ...options.map(([value, text]) => el("option", { value, selected: value === chosen }, text))));
}

// Sections: each is redrawn only when its content has changed.

// A section without data is left out; at the end of the page, its `by` names the command that records the data.
const sections = [
  { id: "curves", title: "Training", by: "atat eval RUN", of: () => [data.tables.curves, data.tables.bounds], draw: curves },
  { id: "metrics", title: "Metrics", by: "atat eval RUN --metric calibration_error", of: () => [data.metrics.rows, data.tables.metrics, data.tables.reliability], draw: metrics },
  { id: "text", title: "Importance and loss of each token", by: "atat report RUN --compute", of: () => runs().map((run) => run.text), draw: texts },
  { id: "importance", title: "Importance against loss", by: "atat importance RUN", of: () => [data.tables.bands, data.tables.bins, ...runs().map((run) => run.figures)], draw: importance },
  { id: "curriculum", title: "Curriculum and mask rates", of: () => ["stages", "strengths", "rates", "spread"].map((name) => data.tables[name]), draw: curriculum },
  { id: "uncertainty", title: "Entropy during generation", by: "atat report RUN --compute", of: () => [data.tables.uncertainty], draw: uncertainty },
  { id: "replay", title: "Generation step by step", by: "atat report RUN --compute", of: () => runs().map((run) => run.replay), draw: replay },
  { id: "frontier", title: "Samplers: quality against decoding steps", by: "atat report RUN --compute --frontier", of: () => [data.tables.frontier], draw: frontier },
  { id: "tasks", title: "Tasks", by: "atat eval RUN --task infilling", of: () => [data.tasks], draw: tasks },
  { id: "samples", title: "Samples", by: "atat train … evaluation.samples=3", of: () => runs().map((run) => run.samples), draw: samples },
  { id: "experiment", title: "Settings", of: () => [data.experiment, runs().map((run) => run.resolved)], draw: experiment },
  { id: "environment", title: "Environment", of: () => runs().map((run) => run.environment), draw: environment },
];
const ofStudy = [{ id: "arms", title: "Arms", of: () => [data.tables.arms, data.tables.sensitivity], draw: arms }, { id: "tables", title: "Tables", of: () => [data.blocks], draw: blocks }];
const reproduce = { id: "commands", title: "Reproduce", of: () => [data.commands], draw: commands };
const bodies = new Map();

const FOCUSED = "a, button, select, input, summary, [tabindex]";
function render() {
  const focused = document.activeElement, home = focused?.closest("section, #head")?.id;
  const place = home ? [...document.getElementById(home).querySelectorAll(FOCUSED)].indexOf(focused) : -1;
  document.getElementById("head").replaceChildren(...[
    el("p", { class: "eyebrow" }, data.kind === "study" ? "Study" : runs().length > 1 ? "Comparison" : "Training run", given.live ? " · live" : ""),
    el("h1", { dir: "auto" }, data.title),
    data.now ? el("p", { class: "now" }, data.now.join(" · ")) : null,
    ...data.verdict.map((sentence, i) => el("p", { class: i < 2 ? "lead" : null, dir: "auto" }, ...words(sentence))),
    ...data.conditions.map((sentence) => el("p", { class: "note", dir: "auto" }, ...words(sentence))),
    data.overview && runs().length > 1 ? table(data.overview.columns, data.overview.rows, { label: "Runs" }) : null,
    el("nav", { "aria-label": "Sections" }, ...listed().map((one) => el("a", { href: `#${one.id}` }, one.title)))].filter((each) => each));
  for (const id of bodies.keys()) if (!listed().some((one) => one.id === id)) {
    document.getElementById(id).remove();
    bodies.delete(id);
  }
  for (const one of listed()) {
    const slice = JSON.stringify(one.of());
    let body = bodies.get(one.id);
    if (!body) {
      body = { host: el("div", {}), notes: el("div", {}), slice: null };
      bodies.set(one.id, body);
      const after = listed().slice(listed().indexOf(one) + 1).map((each) => document.getElementById(each.id)).find((each) => each);
      document.getElementById("main").insertBefore(el("section", { id: one.id, "aria-labelledby": `${one.id}-title` },
        el("h2", { id: `${one.id}-title` }, one.title), body.host, body.notes), after ?? null);
    }
    body.notes.replaceChildren(...(data.notes[one.id] || []).map((sentence) => el("p", { class: "note", dir: "auto" }, sentence)));
    if (body.slice === slice) continue;
    body.slice = slice;
    body.host.replaceChildren(...one.draw().flat().filter((each) => each));
  }
  document.getElementById("foot").replaceChildren(
    `Written ${data.written.replace("T", " ").replace("+00:00", " UTC")} by atat ${data.version}, from recorded results. Charts: Vega-Lite.`);
  if (place >= 0 && !focused.isConnected) document.getElementById(home).querySelectorAll(FOCUSED)[place]?.focus({ preventScroll: true });
}
const something = (each) => Boolean(each && (each.length ?? 1));
const all = () => [...(data.kind === "study" ? ofStudy : sections), reproduce];
const listed = () => all().filter((one) => one.of().some(something));

function curves() {
  const clocks = [["step", "steps"], ["tokens", "tokens"], ["seconds", "seconds"]];
  const { curves, bounds } = data.tables;
  return [
    toggles(),
    el("div", { class: "controls" }, "horizontal axis", choice("Horizontal axis", clocks, state.by, (by) => { state.by = by; redraw(["loss", "bound"]); })),
    bounds.length ? chart("bound", "Held-out perplexity. Bars: ± one standard error over sequences. A curve uses the same sequences and masks at every step, so its changes are more precise than the bars suggest.") : null,
    curves.length ? chart("loss", "Training loss, averaged over each logging interval. Objectives weight their losses differently, so compare runs by held-out perplexity.") : null,
  ];
}

function metrics() {
  const { rows, columns } = data.metrics, drawn = data.tables.metrics;
  const names = [...new Set(drawn.map((row) => row.metric))];
  if (!names.includes(state.metric)) state.metric = names[0] ?? null;
  const choose = selection("metric", names.map((name, i) => [i, name]), names.indexOf(state.metric), (i) => { state.metric = names[i]; redraw(["metrics"]); });
  return [
    table(columns, rows, { label: "Metrics" }),
    legend("metrics", "reliability"),
    ...(drawn.some((row) => row.step !== drawn[0].step) ? [choose && el("div", { class: "controls" }, choose), chart("metrics", "Bars: ± one standard error.")] : []),
    data.tables.reliability.length ? chart("reliability", "Reliability diagram of the predictions at masked tokens. Dashed: perfect calibration. Point size: number of predictions. Bar: calibration error of the bin.") : null,
  ];
}

const having = (key) => runs().map((run, i) => [i, run.name]).filter(([i]) => runs()[i][key]);
function settle(place, having) {  // choose a run with this data, preferably one with an estimator
  if (!having.some(([i]) => i === place.run)) place.run = (having.find(([i]) => runs()[i].text?.estimator) ?? having[0])[0];
}

function texts() {
  const those = having("text");
  const place = state.text;
  settle(place, those);
  const host = el("div", {});
  const show = () => host.replaceChildren(...oneText(show));
  show();
  return [
    el("p", {}, `Held-out text. Darker orange means ${those.some(([i]) => runs()[i].text.estimator) ? "higher importance, or " : ""}a higher loss where the token is masked.`),
    host,
  ];
}
// Whether a recorded text is indented, as code is, which then has a font of fixed width.
const indented = (recorded) => Boolean(recorded?.texts.some(({ tokens }) => /\n(\t| {4})/.test(tokens.join(""))));
// The attributes of the tokens of a text, or of a picture's pixels, which have colours.
const grid = (picture, recorded) => ({ class: `tokens ${picture ? "picture" : indented(recorded) ? "code" : ""}`, style: picture ? { "--columns": picture.columns } : {} });
const isLabel = (picture, i) => Boolean(picture && i < picture.first);
const colouring = (picture, token) => (picture?.colours[token] ? { "--colour": picture.colours[token] } : {});
function range(values) {
  let low = Infinity, high = -Infinity;
  for (const each of values) if (each !== null) { low = Math.min(low, each); high = Math.max(high, each); }
  return low <= high ? [low, high] : [0, 0];
}
function oneText(again) {
  const place = state.text, those = having("text"), recorded = runs()[place.run].text;
  place.text = Math.min(place.text, recorded.texts.length - 1);
  place.rate = Math.min(place.rate ?? Math.floor(recorded.rates.length / 2), Math.max(0, recorded.rates.length - 1));
  const one = recorded.texts[place.text];
  if (!one) return [];
  const all = (key) => recorded.texts.flatMap((text) => (text[key] || []).flat());
  const scales = { importance: range(all("importance")), loss: [0, range(all("loss"))[1]] };
  const readout = el("p", { class: "readout", "aria-live": "polite" });
  const said = (i) => {
    if (i === null || i >= one.tokens.length) return "Hover over a token, or use the arrow keys, to see its importance and loss.";
    const at = (key) => one[key]?.[place.rate]?.[i];
    const words = [`“${one.tokens[i].replace(/\n/g, "↵")}”`];
    if (!one.maskable[i]) words.push("never masked");
    if (one.importance) words.push(`importance ${fixed(at("importance"), 2)}`);
    if (one.loss) words.push(at("loss") === null ? "not masked in these mask samples" : `loss ${fixed(at("loss"), 2)} nats`);
    if (one.surprisal) words.push(`unigram surprisal ${fixed(one.surprisal[i], 2)} nats`);
    return words.join(" · ");
  };
  let panels = [];
  const choose = (i) => {
    place.token = i;
    readout.textContent = said(i);
    for (const panel of panels) {
      panel.querySelector(".chosen")?.classList.remove("chosen");
      if (i !== null) panel.children[i]?.classList.add("chosen");
    }
  };
  const point = (event) => event.target.dataset.i !== undefined && choose(Number(event.target.dataset.i));
  const panel = (title, key, unit) => {  // without a key: the picture itself
    const [low, high] = key ? scales[key] : [0, 0], values = one[key]?.[place.rate];
    const heat = (value) => (value === null || value === undefined || high <= low ? 0 : (value - low) / (high - low));
    const paragraph = el("p", {
      ...grid(recorded.picture, recorded), role: "group", tabindex: 0, dir: "auto", "aria-label": `${title}; arrow keys select a token`,
      on: {
        pointerover: point, click: point,
        keydown: (event) => {
          const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
          if (!move) return;
          event.preventDefault();
          choose(Math.max(0, Math.min(one.tokens.length - 1, (place.token ?? (move > 0 ? -1 : 1)) + move)));
        },
      },
    }, ...one.tokens.map((token, i) => el("span", { "data-i": i, class: isLabel(recorded.picture, i) ? "label" : null, style: key ? { "--h": heat(values?.[i]) } : colouring(recorded.picture, token) }, token.replace(/\n/g, "↵\n"))));
    panels.push(paragraph);
    return el("div", {}, el("h3", {}, title), paragraph,
      key ? el("span", { class: "scale" }, fixed(low, 2), el("i", {}), `${fixed(high, 2)}${unit}`) : null);
  };
  const pair = el("div", { class: "pair" }), output = el("output", {});
  const slider = el("input", { type: "range", min: 0, max: recorded.rates.length - 1, step: 1, value: place.rate, on: {
    input: () => { place.rate = Number(slider.value); showPair(); },  // the slider stays: it may be held by the mouse
  } });
  const several = recorded.rates.length > 1;
  const showPair = () => {
    const at = several ? ` at mask rate ${recorded.rates[place.rate]}` : "";
    output.textContent = String(recorded.rates[place.rate]);
    slider.setAttribute("aria-valuetext", output.textContent);
    panels = [];
    pair.replaceChildren(...[
      recorded.picture ? panel("Picture") : null,
      one.importance ? panel(recorded.importance_depends_on_rate ? `Importance${at}` : "Importance", "importance", "") : null,
      one.loss ? panel(`Loss${at}`, "loss", " nats") : null].filter((each) => each));
    choose(place.token);
  };
  const made = [
    el("div", { class: "controls" },
      selection("run", those, place.run, (i) => { place.run = i; place.token = null; again(); }),
      selection("text", recorded.texts.map((_, i) => [i, String(i + 1)]), place.text, (i) => { place.text = i; place.token = null; again(); }),
      several ? el("label", {}, "mask rate", slider, output) : null),
    image(recorded.images[place.text]),
    pair,
    one.importance ? null : el("p", { class: "note" }, "This run has no importance estimator, so all tokens have the same importance."),
    readout,
    el("p", { class: "note" }, `Training step ${recorded.step.toLocaleString("en")}, ${recorded.split} split, mask seed ${recorded.seed}. Loss: mean over ${count(recorded.draws, "mask sample")} per mask rate.`
      + (one.importance && several && !recorded.importance_depends_on_rate ? " The importance does not depend on the mask rate." : "")),
  ];
  showPair();
  return made.filter((each) => each);
}

// The image of a text as a whole, if its tokenizer draws one.
const image = (one, when = "") => (one ? el("figure", {}, el("img", { src: `data:image/png;base64,${one.png}`, alt: one.said }), el("figcaption", { dir: "auto" }, when + one.said)) : null);

function importance() {
  const drawn = runs().flatMap((run) => run.figures.map((one) => el("figure", {},
    el("img", { class: "paper", src: `data:image/svg+xml;base64,${one.svg}`, alt: one.said }),
    el("figcaption", { dir: "auto" }, `${runs().length > 1 ? `${run.name}: ` : ""}${one.said} Step ${one.step.toLocaleString("en")}.`))));
  return [
    legend("bands", "bins"),
    data.tables.bands.length ? chart("bands", "Rank correlation with the loss among tokens of similar frequency, where importance can add to what frequency tells. The entropy is that of the model's prediction.") : null,
    data.tables.bins.length ? chart("calibration", "Calibration of the importance. Dashed: importance equal to the rank of the loss.") : null,
    drawn.length ? el("div", { class: "papers" }, ...drawn) : el("p", { class: "note" }, "For figures by word class, checkpoint and seed, run ", el("code", {}, "atat importance-figures RUN"), "."),
  ];
}
function curriculum() {
  const has = (key) => data.tables.rates.some((row) => row[key] !== null);
  return [
    legend("strengths", "rates", "spread"),
    data.tables.stages.length ? chart("stages", "Curriculum stage at each training step.") : null,
    data.tables.strengths.length ? chart("strength", "Curriculum strength. A token with importance 1 has exp(strength) times the loss weight of a token with importance 0; if the strength is below 0, easy tokens have more weight.") : null,
    has("mask_rate") ? chart("rates", "Dots: fraction of the tokens of a batch that were masked. Line: its target.") : null,
    data.tables.spread.length ? chart("spread", "Distribution of the sampled mask rates.") : null,
  ];
}
function uncertainty() {
  return [legend("uncertainty"), chart("uncertainty", "Entropy of the predictions at masked tokens. Line: median. Band: 25th to 75th percentile.")];
}
function frontier() {
  return [legend("frontier"), chart("frontier", "Lower is better, further left is faster. Labels: samplers on the Pareto front. The bound is exact for samplers whose decoding order is deterministic."), priced()];
}
function priced() {
  const several = runs().length > 1, columns = ["sampler", "NFE", "value", "quantity", "settings"];
  const rows = data.tables.frontier.map((row) => [row.sampler, fixed(row.evaluations, 1), row.said, row.quantity, row.settings]);
  return el("details", {}, el("summary", {}, "Table of samplers"), table(several ? ["run", ...columns] : columns,
    several ? rows.map((row, i) => [data.tables.frontier[i].run, ...row]) : rows, { label: "Samplers" }));
}
function tasks() {
  return tabled(data.tasks);
}
function samples() {
  const those = runs().filter((run) => run.samples);
  return those.flatMap((run) => [runs().length > 1 ? el("h3", { dir: "auto" }, run.name) : null,
    run.sampler ? el("p", { class: "note", dir: "auto" }, `Sampler: ${run.sampler}.`) : null,
    ...written(run.text?.picture ?? run.replay?.picture, run.samples)]);
}
// Samples as pictures if the run has a picture, otherwise as text. In a written picture, colours follow the labels.
function written(picture, samples) {
  const region = (tag, ...inner) => [el(tag, { dir: "auto", tabindex: 0, role: "region", "aria-label": "Samples", class: picture ? "pictures" : null }, ...inner)];
  if (!picture) return region("pre", samples);
  const names = Object.keys(picture.colours).map((name) => name.replace(/[^\p{L}\p{N}]/gu, (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`));
  const pixel = new RegExp(`(${names.join("|")})`, "u");
  return region("div", ...samples.split(/\n+/).map((line) => el("p", grid(picture), ...line.split(pixel).filter(Boolean).map((token) =>
    el("span", { class: pixel.test(token) ? null : "label", style: colouring(picture, token) }, token)))));
}
function folded(title, ...inner) {
  return el("details", {}, el("summary", { dir: "auto" }, title), ...inner);
}
function experiment() {
  const { columns, rows, apart } = data.experiment, rest = rows.slice(apart);
  return [
    apart ? el("p", {}, `${count(apart, "setting")} differ${apart === 1 ? "s" : ""} between the runs.`) : null,
    apart ? table(columns, rows.slice(0, apart), { label: "Settings that differ between the runs" }) : null,
    rest.length ? folded(`Settings that differ from ${columns[1]} (${rest.length})`, table(columns, rest, { label: "Settings" })) : null,
    ...runs().map((run) => folded(`All settings of ${run.name}`, el("pre", { tabindex: 0, role: "region", "aria-label": "resolved.toml" }, run.resolved))),
  ];
}
function environment() {
  return runs().filter((run) => run.environment.length).map((run) =>
    folded(`Environment of ${run.name}`, table(["", "value"], run.environment, { label: "Environment" })));
}
function commands() {
  const absent = given.live ? [] : all().filter((one) => one.by && !one.of().some(something));
  return [
    el("pre", { tabindex: 0, role: "region", "aria-label": "Commands" }, data.commands.join("\n")),
    absent.length ? folded(`Not recorded (${absent.length})`, table(["section", "command that records it"], absent.map((one) => [one.title, one.by]), { label: "Not recorded" })) : null,
  ];
}

// Denoising replay

function stateAt(one, evaluation) {
  const tokens = [...one.start], heat = new Map(), fresh = new Set();
  for (const frame of one.frames) {
    if (frame.evaluation > evaluation) break;
    const open = new Map(frame.open);
    for (const [i, token] of frame.filled) {
      tokens[i] = token;
      heat.set(i, open.get(i) ?? 0);
      if (frame.evaluation === evaluation) fresh.add(i);
    }
    for (const i of frame.hidden) tokens[i] = null;
  }
  const next = one.frames.find((frame) => frame.evaluation > evaluation);
  return { tokens, heat, fresh, open: new Map(next ? next.open : []) };
}
function replay() {
  const those = having("replay");
  const place = state.replay;
  settle(place, those);
  clearInterval(place.playing);
  place.playing = null;
  const recorded = () => runs()[place.run].replay;
  const looks = grid(recorded().picture, runs()[place.run].text);
  const texts = Math.max(...recorded().samplers.map((sampler) => sampler.texts.length));
  place.text = Math.min(place.text, Math.max(0, texts - 1));
  const last = () => Math.max(1, ...recorded().samplers.map((sampler) => sampler.evaluations[place.text] ?? 0));
  const top = range(recorded().samplers.flatMap((s) => s.texts.flatMap((t) => t.frames.flatMap((f) => f.open.map(([, each]) => each)))))[1];
  const panels = el("div", { class: "pair" }), output = el("output", {});
  const slider = el("input", { type: "range", min: 0, max: last(), step: 1, value: place.at, "aria-label": "decoding step", on: { input: (event) => { touch(); go(Number(event.target.value)); } } });
  const play = el("button", { type: "button", on: { click: () => (place.playing ? pause() : start()) } }, "Play");
  const pause = () => { clearInterval(place.playing); place.playing = null; play.textContent = "Play"; };
  const touch = () => { pause(); place.touched = true; };
  const start = () => {
    if (!place.touched || place.at >= last()) go(0);
    place.touched = true;
    play.textContent = "Pause";
    place.playing = setInterval(() => (place.at >= last() ? pause() : go(place.at + 1)), Math.max(60, Math.min(400, 12000 / last())));
  };
  const go = (at) => {
    place.at = Math.max(0, Math.min(last(), at));
    slider.max = last();
    slider.value = place.at;
    slider.setAttribute("aria-valuetext", `decoding step ${place.at}`);
    output.textContent = `decoding step ${place.at} of ${last()}`;
    panels.replaceChildren(...recorded().samplers.map(sampled));
  };
  const sampled = (sampler, number) => {
    const one = sampler.texts[place.text], of = sampler.evaluations[place.text] ?? 0;
    if (!one) return "";
    const now = stateAt(one, place.at), share = (value) => (top > 0 ? value / top : 0);
    const picture = recorded().picture, label = (i) => (isLabel(picture, i) ? "label " : "");
    const tokens = now.tokens.map((token, i) => token === null
      ? el("span", { class: `${label(i)}mask`, style: { "--h": share(now.open.get(i) ?? 0) } })
      : el("span", { class: label(i) + (now.fresh.has(i) ? "new" : one.start[i] !== null ? "given" : "") || null, style: { "--h": share(now.heat.get(i) ?? 0), ...colouring(picture, token) } }, token.replace(/\n/g, "↵\n")));
    const settings = Object.entries(sampler.settings).filter(([key]) => key !== "use").map(([key, value]) => `${key} ${typeof value === "object" && value ? value.use : value}`);
    const masked = now.tokens.filter((token) => token === null).length;
    return el("div", { class: "sampler" }, el("h3", { dir: "auto" }, sampler.name),
      el("p", { class: "note", dir: "auto" }, `decoding step ${Math.min(place.at, of)} of ${of}, ${count(masked, "masked token")}${settings.length ? ` · ${settings.join(", ")}` : ""}`),
      el("p", { ...looks, dir: "auto" }, ...tokens),
      image(recorded().images[number]?.[place.text], "After the last step. "));
  };
  const stage = el("div", { class: "stage", tabindex: 0, role: "group", "aria-label": "Generation: space plays and pauses, arrow keys step", on: { keydown: (event) => {
    if (event.target !== stage) return;
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === " ") place.playing ? pause() : start();
    else if (move) { touch(); go(place.at + move); }
    else return;
    event.preventDefault();
  } } }, panels);
  const again = () => bodies.get("replay").host.replaceChildren(...replay().filter((each) => each));
  go(place.touched ? place.at : Math.ceil(last() / 2));
  return [
    el("p", {}, "Each sampler uses the same seed. Orange blocks are masked tokens; darker means higher entropy. A generated token keeps the colour that it had when it was unmasked."),
    el("div", { class: "controls" },
      selection("run", those, place.run, (i) => { place.run = i; again(); }),
      selection("text", Array.from({ length: texts }, (_, i) => [i, String(i + 1)]), place.text, (i) => { place.text = i; again(); }),
      play,
      el("button", { type: "button", "aria-label": "Step back", on: { click: () => { touch(); go(place.at - 1); } } }, "‹"),
      el("button", { type: "button", "aria-label": "Step forward", on: { click: () => { touch(); go(place.at + 1); } } }, "›"),
      el("label", {}, slider, output)),
    stage,
    el("span", { class: "scale", style: { "--from": "var(--mask)" } }, "0", el("i", {}), `${fixed(top, 1)} ${recorded().unit} (${recorded().uncertainty})`),
    el("p", { class: "note" }, `Training step ${recorded().step.toLocaleString("en")}, seed ${recorded().seed}.`),
  ];
}

// Studies

function arms() {
  const panels = new Map(data.tables.sensitivity.map((row) => [row.panel, row.axis]));
  return [chart("arms", "Dot and line: mean over seeds with its 95 % confidence interval. Ticks: single seeds."),
    ...[...panels].flatMap(([panel, axis]) => [el("h3", { dir: "auto" }, `Sensitivity of ${axis}`),
      chart("sensitivity", "Dot and line: mean over seeds with its 95 % confidence interval (over sequences for a single seed). Dashed: the arm itself.", panel)])];
}
function blocks() { return tabled(data.blocks); }
function tabled(blocks) {
  return blocks.flatMap((block) => [block.title ? el("h3", {}, block.title) : null, ...(block.said || []).map((sentence) => el("p", { class: "note", dir: "auto" }, ...words(sentence))), table(block.columns, block.rows, { label: block.title || "Table" })]);
}

// Live: the page is updated with new data and keeps the reader's position.

let tag = null;
async function poll() {
  try {
    const answer = await fetch(given.live, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.status === 200) {
      tag = answer.headers.get("ETag");
      data = await answer.json();
      render();
      await drawAll();
    }
  } catch { /* the server or the run is gone for a moment */ }
  setTimeout(poll, 2000);
}

// For the browser's console and for tests.
Object.assign(window, { given, charts, state, render });
Object.defineProperty(window, "data", { get: () => data });

render();
drawAll().then(() => { document.documentElement.dataset.drawn = ""; });
document.documentElement.dataset.ready = String(performance.now());
if (given.live) setTimeout(poll, 1000);
