// Prints the messages of an rt log: a session, or a merged log. docs/LOG_FORMAT.md is all it needs.
//
//     node reader.mjs rt-data/stream/out
//
// A line is: position, number in the merged log, session, sequence number, time in ns, key, headers,
// payload; the last three in hexadecimal, "-" for nothing. A torn end is no error. Exit: 1 if the log is
// damaged, 2 if it cannot be read here: compressed frames need Node.js 22.15. A last file is not searched
// for later frames that would prove that a damaged one was whole.
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import zlib from "node:zlib";

const HEADER = 64, LARGEST = 32 << 20;
const TABLE = Uint32Array.from({ length: 256 }, (_, value) => {
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});
const crc32 = (bytes) => {
  let crc = ~0;
  for (const each of bytes) crc = TABLE[(crc ^ each) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
};
const place = (at) => `${at >> 44n}.${(at >> 30n) & 16383n}.${at & 0x3fffffffn}`;
const hex = (bytes) => (bytes.length ? bytes.toString("hex") : "-");

class Stop extends Error {
  constructor(code, words, at) { super(at === undefined ? words : `${place(at)}: ${words}`); this.code = code; }
}
const damaged = (words, at) => { throw new Stop(1, words, at); };

function manifest(directory) {
  let data;
  try { data = readFileSync(join(directory, "manifest")); } catch { throw new Stop(2, `${directory} has no manifest: it is not a log`); }
  const log = { kind: "", name: "", rolled: new Map(), archived: new Set() };
  const lines = data.toString("latin1").split("\n").slice(0, -1); // what follows the last one was not written
  for (const line of lines) {
    const text = Buffer.from(line.slice(0, -9), "latin1");
    if (crc32(text) !== parseInt(line.slice(-8), 16)) damaged(`manifest: a line is damaged: ${line.slice(0, 40)}`);
    const fields = JSON.parse(text);
    if (fields.what === "log") [log.kind, log.name] = [fields.kind, fields.name];
    if (fields.what === "rolled") log.rolled.set(fields.file, fields.end);
    if (fields.what === "archived") log.archived.add(fields.file);
  }
  return log;
}

/** Returns the bytes of the whole, intact frame that begins at `at`, or 0. */
function whole(data, at, end) {
  if (at + HEADER > end || data.readUInt32BE(at) !== 0x52544601) return 0;
  if (crc32(data.subarray(at + 8, at + HEADER)) !== data.readUInt32LE(at + 4)) return 0;
  const [messages, length, raw] = [40, 44, 48].map((field) => data.readUInt32LE(at + field));
  const [kind, codec, columns, zero] = data.subarray(at + 56, at + 60);
  if (kind > 2 || codec > 1 || columns > 3 || zero || length > LARGEST || raw > LARGEST) return 0;
  if ((kind === 0 && (!messages || messages > raw / 12)) || (kind === 2 && messages) || (!codec && raw !== length)) return 0;
  const size = Math.ceil(Math.max(HEADER + length, kind === 0 ? messages : 0) / 8) * 8;
  const body = at + HEADER;
  if (at + size > end || crc32(data.subarray(body, body + length)) !== data.readUInt32LE(at + 52)) return 0;
  return data.subarray(body + length, at + size).every((each) => each === 0) ? size : 0;
}

function* headersOf(bytes, at) {
  for (let i = 0; i < bytes.length;) {
    const value = i + 3 + bytes[i], end = i + 3 > bytes.length ? Infinity : value + bytes.readUInt16LE(i + 1);
    if (end > bytes.length) damaged("wrong headers", at);
    yield `${bytes.subarray(i + 3, value).toString("hex")}=${bytes.subarray(value, end).toString("hex")}`;
    i = end;
  }
}

function* messagesOf(header, body, at) {
  const count = header.readUInt32LE(40), columns = header[58];
  let next = 8 * count;
  const column = (isThere) => {
    if (!isThere) return null;
    if (next + 4 * (count + 1) > body.length) damaged("the columns do not fit", at);
    const ends = Array.from({ length: count + 1 }, (_, i) => body.readUInt32LE(next + 4 * i));
    if (ends[0] || ends.some((each, i) => i && each < ends[i - 1])) damaged("offsets decrease", at);
    next += 4 * (count + 1);
    return { ends };
  };
  const all = [column(true), column(columns & 1), column(columns & 2)];
  for (const each of all) if (each) { each.at = next; next += each.ends[count]; }
  if (next !== body.length) damaged("the columns do not add up to the body", at);
  const bytes = (each, i) => (each ? body.subarray(each.at + each.ends[i], each.at + each.ends[i + 1]) : Buffer.alloc(0));
  for (let i = 0; i < count; i++) {
    const [payload, key, headers] = all.map((each) => bytes(each, i));
    yield [header.readBigUInt64LE(16) + BigInt(i), body.readBigInt64LE(8 * i), hex(key), [...headersOf(headers, at)].join() || "-", hex(payload)];
  }
}

function main(directory) {
  const log = manifest(directory), isMerged = log.kind === "merged";
  const names = new Set([...readdirSync(directory), ...log.rolled.keys()]); // what the manifest knows may be missing
  const files = [...names].map((name) => /^log\.(0|[1-9]\d*)\.(0|[1-9]\d*)$/.exec(name)).filter(Boolean)
    .map(([name, run, roll]) => ({ name, start: (BigInt(run) << 44n) | (BigInt(roll) << 30n) })).sort((a, b) => (a.start < b.start ? -1 : 1));
  let session = log.name, left = 0n, next = 0n, skip = 0, number = 0n; // of the range that is being read
  for (const [index, file] of files.entries()) {
    if (log.archived.has(file.name)) { console.error(`${file.name} is archived`); continue; }
    const path = join(directory, file.name), data = existsSync(path) ? readFileSync(path) : Buffer.alloc(0);
    const rolled = log.rolled.get(file.name), end = rolled ?? data.length;
    if (end > data.length) damaged("the file is missing or shorter than its rolled line says", file.start);
    let offset = 0;
    for (let size; offset < end && (size = whole(data, offset, end)); offset += size) {
      const at = file.start + BigInt(offset), header = data.subarray(offset, offset + HEADER);
      const stored = data.subarray(offset + HEADER, offset + HEADER + header.readUInt32LE(44));
      if (header[56] === 1) {
        if (!isMerged || left || header.readBigUInt64LE(8) !== at || stored.length < 56 || stored.readUInt16LE(36) !== stored.length - 56) damaged("a range is where none can be", at);
        session = stored.subarray(56).toString("latin1");
        [next, left, skip, number] = [stored.readBigUInt64LE(16), stored.readBigUInt64LE(24), stored.readUInt32LE(32), header.readBigUInt64LE(16)];
        continue;
      }
      if (crc32(Buffer.from(session)) !== header.readUInt32LE(60)) damaged("another session's", at);
      if (header.readBigUInt64LE(8) !== (isMerged ? next : at) || (isMerged && BigInt(size) > left)) damaged("not in its place", at);
      if (isMerged) { next += BigInt(size); left -= BigInt(size); }
      if (header[56] === 2) continue;
      let body = stored;
      if (header[57]) {
        if (!zlib.zstdDecompressSync) throw new Stop(2, "is compressed, which needs Node.js 22.15", at);
        body = zlib.zstdDecompressSync(stored, { maxOutputLength: header.readUInt32LE(48) });
      }
      let i = 0n;
      for (const [sequence, time, ...rest] of messagesOf(header, body, at)) {
        if (skip) skip--; // a repeat
        else console.log([place(at + i), isMerged ? number++ : "-", session, sequence, time, ...rest].join("\t"));
        i++;
      }
    }
    if (offset < end || (left && rolled !== undefined)) { // torn, unless something says that it was written
      if (rolled !== undefined || index + 1 < files.length) damaged("is damaged", file.start + BigInt(offset));
      break;
    }
  }
}

if (process.argv.length !== 3) {
  console.error("usage: node reader.mjs DIRECTORY");
  process.exitCode = 2;
} else {
  try { main(process.argv[2]); } catch (error) {
    if (!(error instanceof Stop) && !error.code) throw error;
    console.error(error.message);
    process.exitCode = error instanceof Stop ? error.code : 2;
  }
}
