/** ZIP archives of texts, without compression. Knows no element. */

/** Return an archive of {name: text} as a Blob. */
export function zip(files) {
  const [local, central] = [[], []];
  let offset = 0;
  for (const [name, text] of Object.entries(files)) {
    const [path, bytes] = [name, text].map((it) => new TextEncoder().encode(it));
    const sizes = [...word(crc32(bytes)), ...word(bytes.length), ...word(bytes.length)];
    // version 2.0; the name is UTF-8; stored; 1980-01-01 as a time that says nothing
    const common = [20, 0, 0, 8, 0, 0, 0, 0, 0x21, 0, ...sizes, ...half(path.length), 0, 0];
    local.push(new Uint8Array([...word(0x04034b50), ...common]), path, bytes);
    const rest = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ...word(offset)]; // no comment, disk 0, no attributes
    central.push(new Uint8Array([...word(0x02014b50), 20, 0, ...common, ...rest]), path);
    offset += 30 + path.length + bytes.length;
  }
  const count = half(local.length / 3);
  const size = central.reduce((sum, { length }) => sum + length, 0);
  const end = [...word(0x06054b50), 0, 0, 0, 0, ...count, ...count, ...word(size), ...word(offset), 0, 0];
  return new Blob([...local, ...central, new Uint8Array(end)], { type: "application/zip" });
}

function half(number) {
  return [number & 255, (number >> 8) & 255];
}

function word(number) {
  return [...half(number), ...half(number >>> 16)];
}

function crc32(bytes) {
  let crc = -1;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit += 1) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc;
}
