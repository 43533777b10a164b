/** Keeps documents in the browser, one key each, so that they survive a reload. Knows no element. */

export class Store {
  constructor(name) {
    this.prefix = `kvcast-${name}:`;
  }

  /** Return all documents, those changed last first; what is not ours is left out. */
  all() {
    const keys = Object.keys(localStorage).filter((key) => this.has(key));
    const found = keys.map((key) => this.read(key.slice(this.prefix.length)));
    return found.filter(Boolean).sort((one, other) => other.changed - one.changed);
  }

  has(key) {
    return key?.startsWith(this.prefix) ?? false;
  }

  read(id) {
    const document = parsed(localStorage.getItem(this.prefix + id));
    return document?.id === id && Number.isFinite(document.changed) ? document : null;
  }

  /** Keep a document in place of that with its id; false if the browser has no room. */
  write(document) {
    return put(localStorage, this.prefix + document.id, JSON.stringify(document));
  }

  remove(id) {
    localStorage.removeItem(this.prefix + id);
  }
}

/** Keep a text in a browser's storage; false if it has no room. */
export function put(storage, key, text) {
  try {
    storage.setItem(key, text);
    return true;
  } catch {
    return false;
  }
}

/** Return the value of a JSON text; null if it is none. */
export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Return an id that no other document has; crypto.randomUUID needs HTTPS. */
export function newId() {
  const numbers = crypto.getRandomValues(new Uint32Array(2));
  return [Date.now(), ...numbers].map((number) => number.toString(36)).join("-");
}
