// The page: the chosen task and image, the answer, and the message if there is none.

import { ask, Problem } from "./api.js";
import * as classify from "./classify.js";
import { element, make } from "./dom.js";
import { showDevice, showFacts } from "./facts.js";
import { withKey } from "./key.js";
import { onPicture } from "./pictures.js";
import * as road from "./road.js";

const TASKS = { classify, road };
const NO_MODEL = "No model for this task is served here.";
const states = { classify: { timings: null, message: "" }, road: { timings: null, message: "" } };
let models = [];
let current = "classify";
let underWay = new AbortController();

const choices = (name) => models.filter((model) => model.task === TASKS[name].task);
const chosen = (name) => choices(name).find((model) => model.name === states[name].model) ?? choices(name)[0];

function say(text) {
  element("status").textContent = text;
}

function showProblem(problem, again) {
  const parts = [make("p", { textContent: problem.message })];
  if (problem.retryAfterS) {
    const wait = problem.retryAfterS === 1 ? "a second" : `${problem.retryAfterS} seconds`;
    parts.push(make("p", { textContent: `Try again in ${wait}.` }));
  }
  if (problem.requestId) parts.push(make("p", { className: "fine", textContent: `Request ${problem.requestId}` }));
  if (again) parts.push(make("button", { type: "button", className: "button", textContent: "Try again", onclick: again }));
  element("problem").replaceChildren(...parts);
  element("problem").hidden = false;
  element("problem").scrollIntoView({ block: "nearest" });
}

const worthAnotherTry = ({ status }) => status === 0 || status === 401 || status >= 500;

function clearProblem() {
  if (element("problem").contains(document.activeElement)) element("file").focus(); // the focused button disappears
  element("problem").hidden = true;
  element("problem").replaceChildren();
}

function showTask() {
  const model = chosen(current);
  for (const part of document.querySelectorAll(".samples")) part.hidden = part.dataset.task !== current;
  for (const [name, { section }] of Object.entries(TASKS)) {
    section.hidden = name !== current || !states[name].timings;
  }
  for (const link of document.querySelectorAll(".tasks a")) {
    link.ariaCurrent = link.dataset.task === current ? "page" : null;
  }
  showDevice(model);
  if (model) showFacts(model, choices(current), states[current].timings, choose);
  else element("facts").hidden = true;
  say(model || !models.length ? states[current].message : NO_MODEL);
}

function choose(name) {
  states[current].model = name;
  if (states[current].image) run(states[current].image);
  else showTask();
}

async function answer(name, image, signal) {
  const model = chosen(name);
  if (!model) throw new Problem(NO_MODEL, { status: 422 });
  const begun = performance.now();
  const { timings, message, version } = await TASKS[name].run(image, model, signal);
  if (version !== model.version) await loadModels(); // a newer version has replaced it
  return { timings: { ...timings, total: performance.now() - begun }, message };
}

async function run(image) {
  underWay.abort();
  underWay = new AbortController();
  const { signal } = underWay;
  const name = current;
  states[name].image = image;
  clearProblem();
  say(`Looking at ${image.name || "the image"} …`);
  document.body.classList.add("busy");
  try {
    if (!models.length) await loadModels();
    Object.assign(states[name], await withKey(() => answer(name, image, signal)));
    if (signal.aborted) return;
    showTask();
    TASKS[name].section.scrollIntoView({ block: "nearest" }); // on a phone it is outside the viewport
  } catch (problem) {
    if (signal.aborted) return;
    if (problem.status === 404) await loadModels().catch(() => {}); // the model has been removed
    if (signal.aborted) return;
    Object.assign(states[name], { timings: null, message: "" }); // the previous answer must not be taken for this image's
    showTask();
    fail(problem, () => run(image));
  } finally {
    if (!signal.aborted) document.body.classList.remove("busy");
  }
}

function fail(problem, again) {
  say("");
  if (!(problem instanceof Problem)) console.error(problem);
  const shown = problem instanceof Problem ? problem : new Problem("This browser could not show the answer.");
  showProblem(shown, worthAnotherTry(shown) ? again : null);
}

async function loadModels() {
  const response = await withKey(() => ask("models"));
  ({ models } = await response.json());
  showTask();
}

function readTask() {
  const wanted = location.hash.slice(1);
  underWay.abort();
  document.body.classList.remove("busy");
  clearProblem();
  current = wanted in TASKS ? wanted : "classify";
  showTask();
}

async function begin() {
  clearProblem();
  try {
    await loadModels();
  } catch (problem) {
    fail(problem, begin);
  }
}

addEventListener("hashchange", readTask);
onPicture(run, (problem) => fail(problem, null));
readTask();
begin();
