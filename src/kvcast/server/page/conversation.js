/**
 * Keeps a conversation in the browser, so that it survives a reload. Knows no element.
 *
 * A tab goes on with its own, a new one with the last of any.
 */

const KEY = "kvcast-conversation";

/** Return what was kept: {settings, turns}. */
export function kept() {
  try {
    const { settings, turns } = JSON.parse(sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY));
    return { settings: { ...settings }, turns: turns.filter(isTurn) };
  } catch {
    return { settings: {}, turns: [] }; // nothing, or nothing of ours
  }
}

function isTurn({ role, ...texts }) {
  const { content, name } = texts;
  const all = [content, name, ...Object.values(texts)];
  return ["user", "assistant"].includes(role) && all.every((text) => typeof text === "string");
}

/** Keep a conversation in place of the last; false if the browser has no room for it. */
export function keep(conversation) {
  const text = JSON.stringify(conversation);
  try {
    for (const storage of [sessionStorage, localStorage]) storage.setItem(KEY, text);
    return true;
  } catch {
    return false;
  }
}
