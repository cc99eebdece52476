// Loads a trace into Perfetto's trace processor (wasm) without a browser: node trace_processor.js WEB_FOLDER TRACE
// The bundle expects a web worker, so it runs in a context that looks like one. Prints JSON: seconds, slices.
const fs = require("fs");
const path = require("path");
const vm = require("vm");
const [folder, trace] = process.argv.slice(2);
const fail = (problem) => { console.error(String(problem && problem.message).slice(0, 200)); process.exit(1); };
process.on("uncaughtException", fail).on("unhandledRejection", fail);

const file = (url) => new Uint8Array(fs.readFileSync(path.join(folder, path.basename(String(url)))));
class Request {
  open(_, url) { this.url = url; }
  send() { this.response = file(this.url).buffer; this.status = 200; }
}

const worker = {
  console, TextDecoder, TextEncoder, URL, performance, setTimeout, clearTimeout, setInterval, clearInterval, queueMicrotask,
  crypto: globalThis.crypto, Response,
  location: { href: "http://localhost/engine_bundle.js", search: "" },
  navigator: { userAgent: "node" },
  importScripts() {},
  XMLHttpRequest: Request,
  fetch: async (url) => new Response(file(url), { headers: { "Content-Type": "application/wasm" } }),
};
worker.self = worker;
worker.globalThis = worker;
worker.WorkerGlobalScope = function () {};
vm.createContext(worker);
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), worker);

const Bytes = vm.runInContext("Uint8Array", worker);
const varint = (n) => {
  const bytes = [];
  for (; n > 127; n = Math.floor(n / 128)) bytes.push((n % 128) | 128);
  return Buffer.from([...bytes, n]);
};
const field = (number, type, ...parts) => Buffer.concat([varint(number * 8 + type), ...parts]);
const bytes = (number, data) => field(number, 2, varint(data.length), data);
let sequence = 0;
const request = (kind, ...fields) =>
  bytes(1, Buffer.concat([field(1, 0, varint(sequence++)), field(2, 0, varint(kind)), ...fields]));
const APPEND = 1, FINALIZE = 2, QUERY = 3;

const waiting = [];
const port = { postMessage: (data) => (waiting.shift() || (() => {}))(Buffer.from(data)), onmessage: null };
const call = (message) => new Promise((resolve) => { waiting.push(resolve); port.onmessage({ data: new Bytes(message) }); });

(async () => {
  await worker.onmessage({ data: port });
  while (!port.onmessage) await new Promise((resolve) => setTimeout(resolve, 10));
  const started = performance.now();
  const opened = fs.openSync(trace, "r");
  const chunk = Buffer.alloc(8 << 20);
  for (let size; (size = fs.readSync(opened, chunk)); ) await call(request(APPEND, bytes(101, chunk.subarray(0, size))));
  await call(request(FINALIZE));
  const seconds = (performance.now() - started) / 1000;
  const reply = await call(request(QUERY, bytes(103, bytes(1, Buffer.from("select count(*) as slices from slice")))));
  const at = reply.indexOf(Buffer.from([10, 1, 2, 18])) + 5;
  const slices = [...reply.subarray(at, at + reply[at - 1])].reduceRight((sum, byte) => sum * 128 + (byte & 127), 0);
  console.log(JSON.stringify({ seconds, slices }));
  process.exit(0);
})();
