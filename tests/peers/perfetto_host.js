// Perfetto's trace processor (WebAssembly, made for a browser's worker) in node: requests on stdin, answers on stdout.
// usage: node perfetto_host.js FOLDER_WITH_engine_bundle.js
const files = require('fs');
const paths = require('path');

const folder = process.argv[2];
const read = (url) => files.readFileSync(paths.join(folder, paths.basename(String(url))));

// The bundle asks what it runs in; node has to look like a worker.
process.type = 'renderer';
Object.assign(globalThis, {
  self: globalThis,
  WorkerGlobalScope: class {},
  importScripts: () => {},
  location: { href: 'http://localhost/engine_bundle.js', protocol: 'http:', host: 'localhost' },
  fetch: async (url) => new Response(read(url), { headers: { 'content-type': 'application/wasm' } }),
  XMLHttpRequest: class {
    open(_, url) {
      this.url = url;
    }
    send() {
      const bytes = read(this.url);
      this.status = 200;
      this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
    }
  },
});
for (const channel of ['log', 'warn', 'error', 'info', 'debug']) console[channel] = () => {};

require('vm').runInThisContext(read('engine_bundle.js').toString(), { filename: 'engine_bundle.js' });
const port = { onmessage: null, postMessage: (bytes) => process.stdout.write(Buffer.from(bytes)) };
globalThis.onmessage({ data: port });
process.stdin.on('data', (bytes) => port.onmessage({ data: new Uint8Array(bytes) }));
process.stdin.on('end', () => process.exit(0));
for (const event of ['uncaughtException', 'unhandledRejection']) {
  process.on(event, (error) => {
    process.stderr.write(String(error).slice(0, 2000) + '\n');
    process.exit(1);
  });
}
