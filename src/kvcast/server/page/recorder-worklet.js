/** Passes what the microphone hears on to the page, a tenth of a second or so at a time. */

const BLOCK = 4096;

class Tap extends AudioWorkletProcessor {
  constructor() {
    super();
    this.block = new Float32Array(BLOCK);
    this.filled = 0;
    this.open = true;
    this.port.onmessage = () => {
      this.port.postMessage(this.block.slice(0, this.filled));
      this.port.postMessage(null);
      this.open = false;
    };
  }

  process([[samples]]) {
    if (!samples || !this.open) return this.open;
    if (this.filled + samples.length > BLOCK) {
      this.port.postMessage(this.block.slice(0, this.filled));
      this.filled = 0;
    }
    this.block.set(samples, this.filled);
    this.filled += samples.length;
    return true;
  }
}

registerProcessor("tap", Tap);
