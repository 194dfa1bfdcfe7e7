// Drives the tools with the official clients for TypeScript.
//
//   node client.mjs URL TOKEN BOXD SOCKET
//
// Each way in uses every kind of content, hears of progress, and cancels a command. It prints a line of
// JSON for each: the revision that was negotiated.
import assert from "node:assert/strict";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { Client as OldClient } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as OldHTTP } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [url, token, boxd, socket] = process.argv.slice(2);
const info = { name: "typescript", version: "1" };
const header = { requestInit: { headers: { Authorization: `Bearer ${token}` } } };
const text = (result) => result.content.filter((c) => c.type === "text").map((c) => c.text).join("");

async function use(name, client, transport, call) {
  await client.connect(transport);
  const { tools } = await client.listTools();
  assert.equal(tools.length, 10);
  assert.match(client.getInstructions(), /isolated Linux system/);

  let result = await call({ name: "exec", arguments: { command: "echo out; exit 3" } });
  assert.equal(result.structuredContent.exit_code, 3);
  assert.match(text(result), /exit code 3[^]*out/);
  result = await call({ name: "run_code", arguments: { language: "python", code: "print(6 * 7)" } });
  assert.equal(result.structuredContent.stdout.text, "42\n");
  result = await call({ name: "exec", arguments: { command: "seq 100000" } });
  const link = result.content.find((c) => c.type === "resource_link");
  const resource = await client.readResource({ uri: link.uri });
  assert.equal(resource.contents[0].text.length, 588895);
  result = await call({ name: "read_file", arguments: { path: "none" } });
  assert.equal(result.isError, true);

  let heard = 0;
  const stop = new AbortController();
  const began = Date.now();
  await assert.rejects(
    call({ name: "exec", arguments: { command: "sleep 4321", timeout_seconds: 100 } }, {
      signal: stop.signal,
      onprogress: () => { heard++; stop.abort("enough"); },
    }),
  );
  assert.ok(heard > 0 && Date.now() - began < 60000);
  result = await call({ name: "exec", arguments: { command: "cat /proc/[0-9]*/cmdline | tr '\\0' ' '" } });
  assert.doesNotMatch(text(result).replace(/command.*/, ""), /sleep 4321/);
  console.log(JSON.stringify({ name, revision: client.getNegotiatedProtocolVersion?.() ?? "" }));
  await client.close();
}

for (const mode of ["legacy", "auto", { pin: "2026-07-28" }]) {
  const client = new Client(info, { versionNegotiation: { mode } });
  const transport = new StreamableHTTPClientTransport(new URL(url), header);
  await use(`http ${JSON.stringify(mode)}`, client, transport, (p, o) => client.callTool(p, o));
}
for (const mode of ["legacy", "auto"]) {
  const client = new Client(info, { versionNegotiation: { mode } });
  const transport = new StdioClientTransport({ command: boxd, args: ["mcp", "--stdio", "--socket", socket] });
  await use(`stdio ${mode}`, client, transport, (p, o) => client.callTool(p, o));
}
const old = new OldClient(info);
await use("old", old, new OldHTTP(new URL(url), header), (p, o) => old.callTool(p, undefined, o));
