// Segmentation: fetches one heatmap; the threshold, the views and the saved mask are computed from it here.

import { send, serverTimings } from "./api.js";
import { element, make, percent } from "./dom.js";
import { Heatmap } from "./heatmap.js";

const canvas = element("canvas");
const slider = element("threshold");
const views = [...document.querySelectorAll("input[name=view]")];
const DESCRIPTIONS = { overlay: "The photo with the road marked", photo: "The photo", mask: "The road as a mask" };
let heatmap = null;
let name = "";

export const task = "segmentation";
export const section = element("segmentation");

const threshold = () => Number(slider.value);

function draw() {
  const view = views.find((choice) => choice.checked).value;
  const road = `${percent(heatmap.roadFraction(threshold()))} road`;
  heatmap.draw(canvas, view, threshold());
  canvas.setAttribute("aria-label", `${DESCRIPTIONS[view]}, ${road}`);
  element("threshold-value").replaceChildren(make("b", { textContent: threshold().toFixed(2) }), ` ${road}`);
  slider.setAttribute("aria-valuetext", `${threshold().toFixed(2)}, ${road}`);
}

// If the browser cannot show the photo, the mask is still correct.
function offerViews() {
  for (const choice of views) choice.disabled = !heatmap.photo && choice.value !== "mask";
  if (!heatmap.photo) views.find((choice) => choice.value === "mask").checked = true;
}

async function save() {
  const link = make("a", { download: `${name.replace(/\.[^.]*$/, "") || "road"}-mask.png` });
  link.href = URL.createObjectURL(await heatmap.maskFile(threshold()));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000); // the download has started by then
}

export async function run(image, model, signal) {
  const response = await send("segment", { model: model.name, output: "heatmap" }, image, signal);
  const found = await Heatmap.of(await response.blob(), image);
  if (signal.aborted) found.close(); // another image was chosen meanwhile
  signal.throwIfAborted();
  heatmap?.close();
  heatmap = found;
  name = image.name ?? "";
  offerViews();
  draw();
  const share = percent(heatmap.roadFraction(threshold()));
  const message = `At threshold ${threshold().toFixed(2)}, ${share} of the picture is road.`;
  return { timings: serverTimings(response), message, version: Number(response.headers.get("x-model-version")) };
}

slider.addEventListener("input", draw);
for (const choice of views) choice.addEventListener("change", draw);
element("save").addEventListener("click", save);
