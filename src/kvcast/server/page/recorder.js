/**
 * Records from the microphone into a WAV file, of which each block is told as it comes.
 *
 * Not by MediaRecorder: what that writes (WebM, MP4) a server can read only with the extra "media".
 */

export class Recorder {
  /** `heard` is called with each block, its level, from 0 to 1, and the seconds so far. */
  constructor(heard) {
    this.heard = heard;
    this.blocks = [];
    this.length = 0;
  }

  /** Begin; throws an Error with a line for the user if there is no microphone. */
  async start() {
    if (!navigator.mediaDevices) {
      throw new Error("Browsers give pages the microphone only at localhost or over HTTPS.");
    }
    try {
      this.stream = await navigator.mediaDevices.getUserMedia({
        audio: { channelCount: 1, echoCancellation: false, noiseSuppression: false },
      });
    } catch (error) {
      throw new Error(`The microphone cannot be used: ${error.message}`);
    }
    this.context = new AudioContext();
    try {
      await this.connect();
    } catch (error) {
      await this.release();
      throw new Error(`The recorder cannot be loaded: ${error.message}`);
    }
  }

  async connect() {
    await this.context.audioWorklet.addModule("/page/recorder-worklet.js");
    this.tap = new AudioWorkletNode(this.context, "tap", { numberOfOutputs: 0, channelCount: 1 });
    this.tap.port.onmessage = ({ data }) => this.take(data);
    this.context.createMediaStreamSource(this.stream).connect(this.tap);
  }

  take(block) {
    if (block === null) {
      this.flushed();
      return;
    }
    this.blocks.push(block);
    this.length += block.length;
    const peak = block.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0) / 32768;
    this.heard(block, peak, this.length / this.rate);
  }

  /** Samples a second. */
  get rate() {
    return this.context.sampleRate;
  }

  /** End, and return the recording as a File. */
  async stop() {
    await new Promise((resolve) => {
      this.flushed = resolve;
      this.tap.port.postMessage("end");
    });
    await this.release();
    const samples = wav(this.blocks, this.length, this.rate);
    return new File([samples], "recording.wav", { type: "audio/wav" });
  }

  /** Let go of the microphone. */
  async release() {
    for (const track of this.stream.getTracks()) track.stop();
    await this.context.close();
  }
}

/** Return mono samples of 16 bits as a WAV file. */
function wav(blocks, length, rate) {
  const bytes = new DataView(new ArrayBuffer(44 + 2 * length));
  const text = (at, letters) =>
    [...letters].forEach((letter, i) => bytes.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  bytes.setUint32(4, 36 + 2 * length, true);
  text(8, "WAVEfmt ");
  bytes.setUint32(16, 16, true);
  bytes.setUint16(20, 1, true); // integers
  bytes.setUint16(22, 1, true); // one channel
  bytes.setUint32(24, rate, true);
  bytes.setUint32(28, 2 * rate, true);
  bytes.setUint16(32, 2, true);
  bytes.setUint16(34, 16, true);
  text(36, "data");
  bytes.setUint32(40, 2 * length, true);
  let at = 44;
  for (const block of blocks) {
    for (const sample of block) {
      bytes.setInt16(at, sample, true);
      at += 2;
    }
  }
  return bytes.buffer;
}
