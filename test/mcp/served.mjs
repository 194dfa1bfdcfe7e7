// Drives a server behind the gateway with the official clients for TypeScript.
//
//   node served.mjs WAY SERVER MODE
//
// WAY is JSON: {"url": …, "token": …} for HTTP, {"command": …, "args": […]} for a program on stdin and stdout.
// It prints a line of JSON for each client: the revision that was negotiated.
import assert from "node:assert/strict";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { Client as OldClient } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport as OldHTTP } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { StdioClientTransport as OldStdio } from "@modelcontextprotocol/sdk/client/stdio.js";

const [server, mode] = process.argv.slice(3);
const way = JSON.parse(process.argv[2]);
const info = { name: "typescript", version: "1" };
const header = { requestInit: { headers: { Authorization: `Bearer ${way.token}` } } };
const open = (HTTP, Stdio) => (way.url ? new HTTP(new URL(way.url), header) : new Stdio(way));
const text = (result) => result.content.filter((c) => c.type === "text").map((c) => c.text).join("");

const uses = {
  async everything(client, call) {
    const { tools } = await client.listTools();
    assert.ok(tools.some((t) => t.name === "get-sum"), tools.map((t) => t.name).join());
    assert.match(text(await call({ name: "echo", arguments: { message: "<ünï> & \u2028" } })), /<ünï> & \u2028/);
    const sums = await Promise.all([...Array(50).keys()].map((n) => call({ name: "get-sum", arguments: { a: n, b: 1000 } })));
    sums.forEach((sum, n) => assert.match(text(sum), new RegExp(`\\b${n + 1000}\\b`)));
    let heard = 0;
    const long = await call({ name: "trigger-long-running-operation", arguments: { duration: 0.5, steps: 5 } }, { onprogress: () => heard++ });
    assert.match(text(long), /completed/);
    assert.ok(heard > 0, "no progress");
    const stop = new AbortController();
    await assert.rejects(
      call({ name: "trigger-long-running-operation", arguments: { duration: 60, steps: 300 } }, { signal: stop.signal, onprogress: () => stop.abort("enough") }),
    );
    const image = await call({ name: "get-tiny-image", arguments: {} });
    assert.ok(image.content.some((c) => c.type === "image"));
    assert.ok((await client.listResources()).resources.length > 0);
    assert.ok((await client.listPrompts()).prompts.length > 0);
    await assert.rejects(client.getPrompt({ name: "no such prompt" }));
  },
  async filesystem(client, call) {
    await call({ name: "write_file", arguments: { path: "/workspace/a", content: "written" } });
    assert.equal(text(await call({ name: "read_text_file", arguments: { path: "/workspace/a" } })), "written");
    const outside = await call({ name: "read_text_file", arguments: { path: "/etc/passwd" } });
    assert.equal(outside.isError, true);
  },
  async memory(client, call) {
    const name = `entity-${Math.random()}`;
    await call({ name: "create_entities", arguments: { entities: [{ name, entityType: "thing", observations: ["seen"] }] } });
    assert.match(text(await call({ name: "read_graph", arguments: {} })), new RegExp(name));
  },
};

const eras = mode === "session" ? ["legacy", "auto"] : ["legacy", "auto", { pin: "2026-07-28" }];
for (const era of eras) {
  const client = new Client(info, { versionNegotiation: { mode: era } });
  await client.connect(open(StreamableHTTPClientTransport, StdioClientTransport));
  await uses[server](client, (p, o) => client.callTool(p, o));
  console.log(JSON.stringify({ era, revision: client.getNegotiatedProtocolVersion?.() ?? "" }));
  await client.close();
}
const old = new OldClient(info);
const transport = open(OldHTTP, OldStdio);
await old.connect(transport);
await uses[server](old, (p, o) => old.callTool(p, undefined, o));
await transport.terminateSession?.();
await old.close();
console.log(JSON.stringify({ era: "old", revision: "" }));
