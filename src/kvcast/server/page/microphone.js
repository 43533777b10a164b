/** The button that records, and the words that are shown meanwhile. */

import { clock, show } from "/page/dom.js";
import { Live } from "/page/live.js";
import { Recorder } from "/page/recorder.js";

export class Microphone {
  /**
   * `live` returns what Live takes, or null where words are not shown; `recorded` is called with the
   * file and the Live that heard it.
   */
  constructor(area, live, recorded) {
    Object.assign(this, { area, options: live, recorded, recorder: null, live: null });
    this.button = this.find("[name=record]");
    this.button.addEventListener("click", () => this.toggle());
  }

  find(selector) {
    return this.area.querySelector(selector);
  }

  async toggle() {
    // Not disabled while it begins or ends: that would take the keyboard's focus from it.
    if (this.button.ariaDisabled === "true") return;
    show(this.find(".error"));
    this.button.ariaDisabled = "true";
    try {
      if (this.recorder === null) await this.begin();
      else await this.end();
    } catch (failure) {
      show(this.find(".error"), failure);
    } finally {
      const recording = this.recorder !== null;
      this.button.ariaDisabled = "false";
      this.button.ariaPressed = String(recording);
      this.button.querySelector(".said").textContent = recording ? "Stop recording" : "Record";
      this.find(".recording").hidden = !recording;
    }
  }

  async begin() {
    this.forget(this.live);
    const begun = new Recorder((block, level, seconds) => {
      this.live?.add(block);
      this.find(".level").ariaValueNow = level.toFixed(2);
      this.find(".level > div").style.width = `${100 * level}%`;
      this.find(".elapsed").textContent = clock(seconds);
    });
    await begun.start();
    this.recorder = begun;
    this.listen(begun);
  }

  async end() {
    const done = this.recorder;
    this.recorder = null;
    const file = await done.stop();
    this.live?.finish();
    this.find(".unheard").hidden = true;
    this.recorded(file, this.live);
  }

  /** Show words while somebody speaks, if the server can; the recording itself is what counts. */
  listen({ rate, blocks }) {
    const options = this.options();
    if (options === null) return;
    const lost = (failure) => {
      this.find(".unheard").hidden = this.recorder === null;
      this.find(".unheard").textContent =
        `Words are not shown while you speak (${failure.message}). They come when you stop.`;
    };
    this.live = new Live({ ...options, rate }, () => this.show(), lost);
    for (const block of blocks) this.live.add(block);
  }

  show() {
    const segments = this.live?.segments ?? [];
    this.find(".live").hidden = segments.length === 0;
    this.find(".live").textContent = segments.map(({ text }) => text.trim()).join(" ");
  }

  /** Words that were heard live are needed no longer. */
  forget(live) {
    live?.close();
    if (live === null || live !== this.live) return;
    this.live = null;
    for (const name of [".live", ".unheard"]) this.find(name).hidden = true;
  }
}
