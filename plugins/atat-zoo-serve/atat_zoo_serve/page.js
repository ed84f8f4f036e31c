"use strict";
// Generated text reaches the page only through textContent, never as markup.
const { about, keyed } = JSON.parse(document.getElementById("given").textContent);
const field = (id) => document.getElementById(id);
const GAP = /\[MASK(:[^\[\]]*)?\]/;
const still = matchMedia("(prefers-reduced-motion: reduce)");
let asking = null;  // aborts the current request

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
const sleep = (ms) => new Promise((wake) => setTimeout(wake, ms));

function say(words, wrong = false) {
  field("status").textContent = words;
  field("status").classList.toggle("wrong", wrong);
}
const number = (id) => (field(id).value === "" ? undefined : Number(field(id).value));

// The request; JSON leaves out undefined fields.
function asked() {
  const text = field("text").value, gaps = GAP.test(text);
  const what = gaps ? { text } : { prompt: text, max_tokens: number("tokens") };
  return { path: gaps ? "/v1/infill" : "/v1/completions", body: { ...what, n: number("number"), seed: number("seed") } };
}

function command() {
  const { path, body } = asked(), quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const key = keyed ? " -H \"Authorization: Bearer $ATAT_KEY\"" : "";
  field("command").textContent =
    `curl ${location.origin}${path}${key} -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body))}`;
  field("paused").textContent = `${field("pause").value} ms`;
}

// Yield the JSON of each server-sent event.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const whole = (rest + value).split("\n\n");
    rest = whole.pop();
    for (const event of whole) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

function draw(index, state) {
  const texts = field("texts");
  while (texts.children.length <= index) {
    const label = `text-${texts.children.length + 1}`;
    texts.append(el("figure", {}, el("figcaption", { id: label }, `Text ${texts.children.length + 1}`),
      el("div", { class: "tokens", dir: "auto", role: "group", "aria-labelledby": label })));
  }
  const shown = [];
  for (const segment of state) {
    const [[kind, what]] = Object.entries(segment);
    if (kind !== "masked") shown.push(el("span", { class: kind }, what));
    else for (let i = 0; i < what; i++) shown.push(el("span", { class: "mask", "aria-hidden": "true" }));
  }
  texts.children[index].lastChild.replaceChildren(...shown);
}

async function write() {
  asking?.abort();
  const mine = asking = new AbortController(), { path, body } = asked();
  const headers = { "Content-Type": "application/json", ...(keyed && { Authorization: `Bearer ${field("key").value}` }) };
  const left = new Map();  // masked tokens of each text
  let last = -1, seed, written = 0;
  field("texts").replaceChildren();
  field("stop").setAttribute("aria-disabled", "false");
  say("waiting …");
  try {
    const answer = await fetch(path, { method: "POST", headers, signal: mine.signal,
      body: JSON.stringify({ ...body, stream: true, unmasking: true, stream_options: { include_usage: true } }) });
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    for await (const event of events(answer.body)) {
      if (event.error) throw new Error(event.error.message);
      seed = event.seed;
      written = event.usage?.completion_tokens ?? written;
      for (const { index, unmasking } of event.choices) {
        if (!unmasking) continue;
        if (index <= last && !still.matches) await sleep(Number(field("pause").value));
        if (mine.signal.aborted) throw new DOMException("", "AbortError");
        last = index;
        draw(index, unmasking);
        left.set(index, unmasking.reduce((sum, { masked = 0 }) => sum + masked, 0));
        say(`${[...left.values()].reduce((a, b) => a + b)} tokens are still masked`);
      }
    }
    say(`${written} tokens generated; use seed ${seed} to generate the same text again`);
  } catch (error) {
    if (asking !== mine) return;  // another request has begun
    if (error.name === "AbortError") say("stopped");
    else say(error.message, true);
  }
  if (asking === mine) {
    asking = null;
    field("stop").setAttribute("aria-disabled", "true");
  }
}

field("about").textContent = JSON.stringify(about, null, 1);
field("keyed").hidden = !keyed;
field("form").addEventListener("submit", (event) => { event.preventDefault(); write(); });
field("form").addEventListener("input", command);
field("stop").addEventListener("click", () => asking?.abort());
field("gap").addEventListener("click", () => {
  if (!field("size").reportValidity()) return;
  const text = field("text");
  text.setRangeText(`[MASK:${field("size").value || 1}]`, text.selectionStart, text.selectionEnd, "end");
  text.focus();
  command();
});
field("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) field("form").requestSubmit();
});
command();
