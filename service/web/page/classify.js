// Classification: the most probable classes as bars.

import { send } from "./api.js";
import { element, make, percent } from "./dom.js";

const TOP = 5;
const SMALL = 96; // pictures up to this width are enlarged without smoothing
const photo = element("classified");

export const task = "classification";
export const section = element("classification");

function bar({ label, probability }) {
  const fill = make("span", { className: "fill" });
  fill.style.setProperty("--share", probability);
  return make(
    "li",
    {},
    make("span", { className: "label", textContent: label }),
    make("span", { className: "value", textContent: percent(probability) }),
    make("span", { className: "track" }, fill),
  );
}

function show(image) {
  URL.revokeObjectURL(photo.src);
  photo.onload = () => photo.classList.toggle("crisp", photo.naturalWidth <= SMALL);
  photo.alt = image.name ? `The image that was classified, ${image.name}` : "The image that was classified";
  photo.src = URL.createObjectURL(image);
}

export async function run(image, model, signal) {
  const response = await send("classify", { model: model.name, top_k: TOP }, image, signal);
  const answer = await response.json();
  const predictions = answer.results[0].predictions;
  show(image);
  element("bars").replaceChildren(...predictions.map(bar));
  element("seen").textContent = `${model.description.width} × ${model.description.height}`;
  const [best] = predictions;
  const message = `Most likely ${best.label}, ${percent(best.probability)}.`;
  return { timings: answer.timings_ms, message, version: answer.version };
}
