// All sources of an image: file input, drop, paste, samples.

import { ask } from "./api.js";
import { element } from "./dom.js";

const firstFile = (transfer) => transfer?.files?.[0];

function onChoose(take) {
  const input = element("file");
  input.addEventListener("change", () => {
    if (input.files[0]) take(input.files[0]);
    input.value = ""; // so that the same file can be chosen again
  });
}

function onDrop(take) {
  const zone = element("drop");
  let depth = 0; // dragenter and dragleave also fire for child elements
  const mark = (change) => {
    depth = Math.max(0, depth + change);
    zone.classList.toggle("over", depth > 0);
  };
  addEventListener("dragenter", () => mark(1));
  addEventListener("dragleave", () => mark(-1));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    mark(-depth);
    const file = firstFile(event.dataTransfer);
    if (file) take(file);
  });
}

function onPaste(take) {
  addEventListener("paste", (event) => {
    const file = firstFile(event.clipboardData);
    if (!file) return;
    event.preventDefault();
    take(file);
  });
}

// Fetching a sample takes time: meanwhile another image or task may have been chosen.
function onSample(take, fail, newest) {
  for (const button of document.querySelectorAll("[data-sample]")) {
    button.addEventListener("click", async () => {
      const name = button.dataset.sample;
      const isNewest = newest();
      try {
        const response = await ask(`static/samples/${name}`);
        const file = new File([await response.blob()], name);
        if (isNewest()) take(file);
      } catch (problem) {
        if (isNewest()) fail(problem);
      }
    });
  }
}

export function onPicture(use, fail) {
  let count = 0;
  const newest = () => {
    const own = ++count;
    return () => own === count;
  };
  const take = (file) => {
    newest();
    use(file);
  };
  addEventListener("hashchange", newest);
  onChoose(take);
  onDrop(take);
  onPaste(take);
  onSample(take, fail, newest);
}
