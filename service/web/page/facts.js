// The facts below an answer: model, version, device, and the time of each stage.

import { element, make, percent } from "./dom.js";

const DEVICES = { CPUExecutionProvider: "CPU", CUDAExecutionProvider: "NVIDIA GPU" };
const NAMES = { iou: "IoU" };
const STAGES = { decode: "decode", queue: "wait", inference: "network", total: "round trip" };

const deviceOf = (model) => `${DEVICES[model.provider] ?? model.provider}, ${model.precision}`;

export function showDevice(model) {
  element("device").hidden = !model;
  if (model) element("device").textContent = `Ready on ${deviceOf(model)}`;
}

function metricText({ name, value, dataset, split }) {
  const shown = name === "error" ? `${percent(value)} error` : `${NAMES[name] ?? name} ${value.toFixed(3)}`;
  return `${shown} on ${dataset}, ${split}`;
}

function metricOf({ description, precision }) {
  const known = description.metrics.filter((metric) => metric.precision === precision);
  return known[0] ?? description.metrics[0];
}

function modelChoice(model, choices, onChange) {
  if (choices.length < 2) return `${model.name}, version ${model.version}`;
  const options = choices.map((choice) => make("option", { value: choice.name, textContent: choice.name }));
  const select = make("select", { ariaLabel: "Model" }, ...options);
  select.value = model.name;
  select.addEventListener("change", () => onChange(select.value));
  return make("span", {}, select, ` version ${model.version}`);
}

function entries(model, choices, onChange) {
  const { parameters, network, algebra, training } = model.description;
  const metric = metricOf(model);
  return [
    ["Model", modelChoice(model, choices, onChange)],
    ["Network", `${algebra} ${network}`],
    ["Parameters", parameters.total.toLocaleString("en")],
    ["Device", model.fallback_reason ? `${deviceOf(model)} (${model.fallback_reason})` : deviceOf(model)],
    ...(metric ? [["Measured", metricText(metric)]] : []),
    ["Licence", `weights ${training.weights_licence}`],
  ];
}

function timingText(timings) {
  const shown = Object.entries(STAGES).filter(([stage]) => stage in timings);
  return shown.map(([stage, label]) => `${label} ${timings[stage].toFixed(1)} ms`).join(" · ");
}

export function showFacts(model, choices, timings, onChange) {
  const rows = entries(model, choices, onChange);
  if (timings) rows.push(["Last answer", timingText(timings)]);
  const pairs = rows.map(([term, value]) => make("div", {}, make("dt", { textContent: term }), make("dd", {}, value)));
  const facts = element("facts");
  const focused = facts.contains(document.activeElement); // the menu of models is created again
  facts.replaceChildren(make("dl", {}, ...pairs));
  facts.hidden = false;
  if (focused) facts.querySelector("select")?.focus();
}
