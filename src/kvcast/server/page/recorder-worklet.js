/** Passes on what the microphone hears, as integers of 16 bits, a tenth of a second or so at a time. */

const BLOCK = 4096;

class Tap extends AudioWorkletProcessor {
  constructor() {
    super();
    this.block = new Int16Array(BLOCK);
    this.filled = 0;
    this.open = true;
    this.port.onmessage = () => {
      this.pass();
      this.port.postMessage(null);
      this.open = false;
    };
  }

  pass() {
    this.port.postMessage(this.block.slice(0, this.filled));
    this.filled = 0;
  }

  process([[samples]]) {
    if (!samples || !this.open) return this.open;
    if (this.filled + samples.length > BLOCK) this.pass();
    for (const sample of samples) {
      this.block[this.filled] = Math.round(32767 * Math.max(-1, Math.min(1, sample)));
      this.filled += 1;
    }
    return true;
  }
}

registerProcessor("tap", Tap);
