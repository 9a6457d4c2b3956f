// Requests to the service. Every failure becomes a Problem whose message is a sentence.

const STORED_KEY = "quatserve-key";
let key = recall();

function recall() {
  try {
    return sessionStorage.getItem(STORED_KEY) ?? "";
  } catch { // storage is forbidden: the key is kept until the page is closed
    return "";
  }
}

export function useKey(given) {
  key = given;
  try {
    sessionStorage.setItem(STORED_KEY, given);
  } catch { /* as above */ }
}

export const hasKey = () => key !== "";

export class Problem extends Error {
  constructor(message, { status = 0, retryAfterS = 0, requestId = "" } = {}) {
    super(message);
    this.status = status;
    this.retryAfterS = retryAfterS;
    this.requestId = requestId;
  }
}

function sentence(title, detail) {
  const text = detail && detail !== title ? `${title}: ${detail}` : title;
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

async function problemOf(response) {
  const fields = await response.json().catch(() => ({})); // the answer may be a proxy's, of any type
  const title = fields.title ?? `The service answered with status ${response.status}`;
  return new Problem(sentence(title, fields.detail), {
    status: response.status,
    retryAfterS: Number(response.headers.get("retry-after")) || 0,
    requestId: fields.request_id ?? "",
  });
}

export async function ask(path, options = {}) {
  if (/[^\x20-\x7e]/.test(key)) throw new Problem("A key has printable ASCII characters only.", { status: 401 }); // as headers do
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The service did not answer. It may be restarting, or the image is larger than it takes.");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

export function send(path, query, image, signal) {
  const body = new FormData();
  body.append("file", image, image.name || "image");
  return ask(`${path}?${new URLSearchParams(query)}`, { method: "POST", body, signal });
}

// "decode;dur=0.4, queue;dur=0.1" -> { decode: 0.4, queue: 0.1 }
export function serverTimings(response) {
  const entries = (response.headers.get("server-timing") ?? "").split(",").map((entry) => entry.split(";dur="));
  return Object.fromEntries(entries.filter(([, ms]) => ms).map(([stage, ms]) => [stage.trim(), Number(ms)]));
}
