/** Asks the server: keys, errors, streams and sockets. Knows no endpoint's fields. */

import { put } from "/page/store.js";

const KEY = "kvcast-key";
const KEY_PROTOCOL = "openai-insecure-api-key";
const LOST = "The server does not answer. Is kvcast serve still running?";

let key = sessionStorage.getItem(KEY); // null until one is given

export class ApiError extends Error {}

/** What was lost on the way, and may work again. */
export class LostError extends ApiError {
  constructor() {
    super(LOST);
  }
}

/**
 * Return the response to a request.
 *
 * A body that is a form is sent as it is, anything else as JSON. Throws ApiError with the server's
 * message, LostError if there is no answer, and AbortError when the signal says so.
 */
export async function ask(path, { body, signal, quiet = false } = {}) {
  for (;;) {
    const used = key;
    const response = await answer(path, body, signal);
    if (response.ok) return response;
    const message = await told(response);
    if (response.status !== 401 || quiet || !(await keyGiven(used))) throw new ApiError(message);
  }
}

async function answer(path, body, signal) {
  const headers = key === null ? {} : { authorization: `Bearer ${key}` };
  const options = { signal, headers, cache: "no-store" };
  if (body instanceof FormData) Object.assign(options, { method: "POST", body });
  else if (body !== undefined) {
    headers["content-type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  return unlessLost(fetch(path, options));
}

async function unlessLost(promise) {
  try {
    return await promise;
  } catch (error) {
    throw error instanceof TypeError ? new LostError() : error;
  }
}

async function told(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status} ${response.statusText}`.trim();
  }
}

let asking = null;

/** Ask for a key once, however many requests need one; false if none is given. */
function keyGiven(refused) {
  if (key !== refused) return true; // another request's question found one
  asking ??= keyFromUser(refused).finally(() => (asking = null));
  return asking;
}

async function keyFromUser(refused) {
  const dialog = document.getElementById("key");
  const { key: field, cancel } = dialog.querySelector("form").elements;
  dialog.querySelector(".why").textContent =
    refused === null ? "This server asks for a key." : "The server refused that key.";
  field.value = "";
  cancel.onclick = () => dialog.close("");
  dialog.returnValue = "";
  dialog.querySelector("form").onsubmit = (event) => {
    event.preventDefault();
    dialog.close(field.value);
  };
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  if (!dialog.returnValue) return false;
  key = dialog.returnValue;
  put(sessionStorage, KEY, key);
  return true;
}

/**
 * Open a WebSocket; browsers send a key with one as a subprotocol alone.
 *
 * Throws ApiError for a key that cannot be such.
 */
export function socket(path, query) {
  const address = new URL(`${path}?${new URLSearchParams(query)}`, location.href);
  address.protocol = address.protocol.replace("http", "ws");
  try {
    return new WebSocket(address, ["realtime", ...(key === null ? [] : [`${KEY_PROTOCOL}.${key}`])]);
  } catch {
    throw new ApiError("the key has characters that browsers do not send with live audio");
  }
}

/**
 * Yield the documents of server-sent events, until the stream says that it is complete.
 *
 * Throws ApiError for an error that the stream tells, and LostError if it breaks off.
 */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await unlessLost(reader.read());
      if (done) throw new LostError();
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = dataOf(block);
        if (data === "[DONE]") return;
        const document = JSON.parse(data);
        if (document.error) throw new ApiError(document.error.message);
        yield document;
        if (document.type === "transcript.text.done") return;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it has failed already
  }
}

function dataOf(block) {
  const lines = block.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).trimStart()).join("\n");
}

/** Return whether an error only says that the user stopped it. */
export function stopped(error) {
  return error.name === "AbortError";
}
