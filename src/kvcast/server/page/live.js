/**
 * Words of a recording while it lasts, by OpenAI's realtime protocol. Knows no element.
 *
 * Turns are the server's: it hears where speech begins and ends.
 */

import { socket } from "/page/api.js";

const SPOKEN = "conversation.item.input_audio_transcription";
const BUFFER = "input_audio_buffer";
const MOST_UNSENT = 32 * 2 ** 20; // bytes; a server that reads no faster shows no words in time

export class Live {
  /** `heard` is called when there is more text; `lost`, once, with an Error if no more will come. */
  constructor({ model, language, rate }, heard, lost) {
    Object.assign(this, { rate, heard, lost });
    this.turns = new Map();
    this.samples = 0;
    this.going = true; // whether words may still come
    this.cleared = false; // whether the server has taken all sound
    const transcription = { model, ...(language ? { language } : {}) };
    const input = { format: { type: "audio/pcm", rate }, transcription };
    this.unsent = [{ type: "session.update", session: { type: "transcription", audio: { input } } }];
    this.open(model);
  }

  open(model) {
    try {
      this.socket = socket("/v1/realtime", { model });
    } catch (failure) {
      this.fail(failure);
      return;
    }
    this.socket.onopen = () => {
      for (const event of this.unsent.splice(0)) this.send(event);
    };
    this.socket.onmessage = ({ data }) => this.take(JSON.parse(data));
    this.socket.onclose = () => this.fail(new Error("the connection was lost"));
  }

  /** The turns so far: [{start, end, text}]. */
  get segments() {
    return [...this.turns.values()].filter(({ text }) => text.trim() !== "");
  }

  /** Send samples of 16 bits. */
  add(samples) {
    if (!this.going) return;
    this.samples += samples.length;
    const bytes = new Uint8Array(samples.buffer, samples.byteOffset, samples.byteLength);
    this.send({ type: `${BUFFER}.append`, audio: btoa(String.fromCharCode(...bytes)) });
    if (this.socket.bufferedAmount > MOST_UNSENT) this.fail(new Error("the server is too slow"));
  }

  /** Say that no more sound comes; the rest of the text is still heard. */
  finish() {
    if (!this.going) return;
    this.send({ type: `${BUFFER}.commit` });
    this.send({ type: `${BUFFER}.clear` }); // always answered, unlike a commit of nothing
  }

  close() {
    this.going = false;
    this.socket?.close();
  }

  send(event) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(event));
    else this.unsent.push(event);
  }

  take(event) {
    const turn = this.turns.get(event.item_id);
    const handlers = {
      error: () => this.refused(event.error),
      [`${BUFFER}.speech_started`]: () => this.begin(event),
      [`${BUFFER}.speech_stopped`]: () => (turn.end = event.audio_end_ms / 1000),
      [`${BUFFER}.committed`]: () => this.commit(turn),
      [`${BUFFER}.cleared`]: () => this.clear(),
      [`${SPOKEN}.delta`]: () => this.write(turn, turn.text + event.delta),
      [`${SPOKEN}.completed`]: () => this.complete(turn, event.transcript),
      [`${SPOKEN}.failed`]: () => this.fail(new Error(event.error.message)),
    };
    if (Object.hasOwn(handlers, event.type)) handlers[event.type]();
  }

  begin({ item_id: item, audio_start_ms: start }) {
    this.turns.set(item, { start: start / 1000, end: null, text: "", state: "open" });
  }

  commit(turn) {
    turn.end ??= this.samples / this.rate;
    turn.state = "committed";
  }

  write(turn, text) {
    turn.text = text;
    this.heard();
  }

  complete(turn, text) {
    turn.state = "done";
    this.write(turn, text);
    this.endIfAllIsHeard();
  }

  /** All sound was taken; a turn that was too short for a commit is gone. */
  clear() {
    for (const [item, { state }] of this.turns) if (state === "open") this.turns.delete(item);
    this.cleared = true;
    this.endIfAllIsHeard();
  }

  endIfAllIsHeard() {
    const all = [...this.turns.values()].every(({ state }) => state === "done");
    if (this.cleared && all) this.close();
  }

  refused({ code, message }) {
    if (code !== "input_audio_buffer_commit_empty") this.fail(new Error(message)); // nobody spoke
  }

  fail(failure) {
    if (!this.going) return;
    this.close();
    this.lost(failure);
  }
}
