"use strict";
// Texts reach the page only through textContent, never as markup.
const given = JSON.parse(document.getElementById("given").textContent);
const { form, questions, texts } = given;
const field = (id) => document.getElementById(id);
const place = `atat-rate-${form}`;
const state = { rater: "", at: 0, question: 0, answers: {} };  // answers: "text/question" -> points

try {
  Object.assign(state, JSON.parse(localStorage.getItem(place) || "{}"));
} catch { /* a browser that keeps nothing, or what it kept is damaged */ }
function keep() {
  try {
    localStorage.setItem(place, JSON.stringify(state));
  } catch { /* the page works without it, until it is closed */ }
}

const answer = (text, question) => state.answers[`${text}/${questions[question].name}`];
const unanswered = (text) => questions.findIndex((_, i) => answer(text, i) === undefined);  // the first unanswered question, or -1
const incomplete = () => texts.map((_, i) => i).filter((i) => unanswered(i) >= 0);

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function go(to) {
  state.at = Math.max(0, Math.min(texts.length - 1, to));
  state.question = Math.max(0, unanswered(state.at));
  show();
  field("text").focus();
}
function button(words, to) {
  const made = el("button", { type: "button" }, words);
  made.addEventListener("click", () => go(to()));
  return made;
}
// The next incomplete text, continuing at the beginning after the last; the current text if all are complete.
const unrated = () => { const left = incomplete(); return left.find((i) => i > state.at) ?? left[0] ?? state.at; };

function show() {
  const { text, prompt } = texts[state.at];
  const reading = el("div", { class: "reading", dir: "auto", id: "text", tabindex: "-1", "aria-labelledby": "number" });
  const begins = prompt && text.startsWith(prompt) ? prompt.length : 0;
  if (begins) reading.append(el("span", { class: "prompt", title: "prompt" }, text.slice(0, begins)));
  reading.append(text.slice(begins));
  field("main").replaceChildren(
    el("h2", { id: "number" }, `Text ${state.at + 1} of ${texts.length}`), reading, ...questions.map(asked),
    el("p", { class: "controls" }, button("← Previous text", () => state.at - 1), button("Next text →", () => state.at + 1),
      button("Next incomplete text", unrated)));
  tell();
}

function asked(question, i) {
  const points = el("div", { class: "points" }, el("span", {}, question.low));
  for (let value = 1; value <= question.points; value++) {
    const input = el("input", { type: "radio", name: question.name, value: String(value) });
    input.checked = answer(state.at, i) === value;
    input.addEventListener("change", () => rate(i, value));
    input.addEventListener("focus", () => mark(i));
    points.append(el("label", {}, input, String(value)));
  }
  points.append(el("span", {}, question.high));
  return el("fieldset", { "data-question": question.name }, el("legend", {}, question.text), points);
}

function rate(question, value) {
  state.answers[`${state.at}/${questions[question].name}`] = value;
  document.querySelector(`fieldset:nth-of-type(${question + 1}) input[value="${value}"]`).checked = true;
  tell();
}
function mark(question) {
  state.question = question;
  document.querySelectorAll("fieldset").forEach((each, i) => each.classList.toggle("current", i === question));
}
function tell() {
  const left = incomplete();
  mark(state.question);
  field("progress").max = texts.length;
  field("progress").value = texts.length - left.length;
  const lacks = [];
  if (left.length) lacks.push(`${texts.length - left.length} of ${texts.length} texts are complete; next: ${left.slice(0, 5).map((i) => i + 1).join(", ")}`);
  if (!state.rater.trim()) lacks.push("enter your name above");
  field("status").textContent = lacks.length ? `${lacks.join("; ")}.` : "You have answered all questions. Save your answers as a file.";
  for (const id of ["json", "csv"]) field(id).setAttribute("aria-disabled", String(lacks.length > 0));
  keep();
}

// What `atat rate import` reads: texts are numbered from 1.
function ratings() {
  return texts.flatMap((_, i) => questions.map(({ name }, j) => ({ text: i + 1, question: name, rating: answer(i, j) })));
}
const quoted = (value) => `"${String(value).replaceAll('"', '""')}"`;
const written = {
  json: (rater) => `${JSON.stringify({ form, rater, ratings: ratings() }, null, 1)}\n`,
  csv: (rater) => ["form,rater,text,question,rating",
    ...ratings().map((each) => [form, rater, each.text, each.question, each.rating].map(quoted).join(","))].join("\r\n") + "\r\n",
};
function save(kind) {
  const rater = state.rater.trim();
  if (!rater) { field("rater").focus(); return; }
  if (incomplete().length) { go(unrated()); return; }
  const url = URL.createObjectURL(new Blob([written[kind](rater)], { type: kind === "json" ? "application/json" : "text/csv" }));
  const link = el("a", { href: url, download: `ratings-${rater.replace(/[^\p{L}\p{N}]+/gu, "-")}.${kind}` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

field("rater").value = state.rater;
field("rater").addEventListener("input", (event) => { state.rater = event.target.value; tell(); });
for (const kind of ["json", "csv"]) field(kind).addEventListener("click", () => save(kind));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.type === "text") return;
  const value = Number(event.key), tag = event.target.tagName;
  if (/^[1-9]$/.test(event.key)) {
    if (value > questions[state.question].points) return;
    rate(state.question, value);
    mark(Math.min(questions.length - 1, state.question + 1));
  } else if (event.key === "Enter" && !["BUTTON", "SUMMARY"].includes(tag)) go(state.at + 1);
  else if (event.key === "ArrowRight" && tag !== "INPUT") go(state.at + 1);  // within a scale, arrow keys choose a rating
  else if (event.key === "ArrowLeft" && tag !== "INPUT") go(state.at - 1);
  else if (event.key.toLowerCase() === "u") go(unrated());
  else return;
  event.preventDefault();
});
state.at = Math.min(state.at, texts.length - 1);
show();
