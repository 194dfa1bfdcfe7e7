# shellcheck shell=sh
cat >server.js <<'PROGRAM'
const http = require("http"), dgram = require("dgram"), { Worker } = require("worker_threads");
const udp = dgram.createSocket({ type: "udp4", recvBufferSize: 1 << 20, sendBufferSize: 1 << 20 });
const server = http.createServer((request, response) => response.end(Buffer.alloc(1000000)));
udp.bind(0, "127.0.0.1", () => server.listen(0, "127.0.0.1", () => {
	http.get({ port: server.address().port, host: "127.0.0.1" }, (response) => {
		let size = 0;
		response.on("data", (data) => size += data.length);
		response.on("end", () => {
			const worker = new Worker("require('worker_threads').parentPort.postMessage(42)", { eval: true });
			worker.on("message", (answer) => {
				console.log(`client got ${size} bytes, worker got ${answer}`);
				server.close();
				udp.close();
			});
		});
	});
}));
PROGRAM
node server.js
