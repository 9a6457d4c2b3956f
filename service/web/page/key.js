// If the service requires a key: asks for it, then repeats the refused requests.

import { hasKey, useKey } from "./api.js";
import { element } from "./dom.js";

const dialog = element("key-dialog");
let waiting = null; // one dialog, however many requests were refused

function question(reason) {
  element("key-reason").textContent = reason;
  element("key").value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const answer = (given) => {
      dialog.close();
      waiting = null;
      resolve(given);
    };
    element("key-form").onsubmit = (event) => {
      event.preventDefault();
      answer(element("key").value.trim());
    };
    element("key-cancel").onclick = () => answer("");
    dialog.oncancel = () => answer(""); // Escape
  });
}

export async function withKey(action) {
  for (;;) {
    try {
      return await action();
    } catch (problem) {
      if (problem.status !== 401) throw problem;
      waiting ??= question(hasKey() ? "That key is not known here." : "");
      const given = await waiting;
      if (!given) throw problem;
      useKey(given);
    }
  }
}
