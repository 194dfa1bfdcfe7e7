// Runs commands in a session, streams output, works with files and a managed process, and cleans up.
//
//     node examples/session.mjs http://127.0.0.1:8420 TOKEN
import { BoxdError, boxd, execStream, follow, must } from "boxd-client";

const [url, token] = process.argv.slice(2);
const client = boxd({ url, token });
const path = { id: "example-ts" };

const session = must(await client.POST("/v1/sessions", { body: { id: path.id, memory: "256M", labels: { "made-by": "example" } } }));
console.log(session.state, session.memory, session.created);

// A command that fails is a result; a request that is refused is an error.
const result = must(await client.POST("/v1/sessions/{id}/exec", { params: { path }, body: { shell: "echo hello; exit 3", timeout: "10s" } }));
console.log(result.verdict, result.exit_code, result.stdout);
try {
  must(await client.POST("/v1/sessions/{id}/exec", { params: { path }, body: { argv: ["no-such-program"] } }));
} catch (e) {
  if (!(e instanceof BoxdError)) throw e;
  console.log(e.problem.status, e.problem.code, e.problem.field);
}

// Output as it arrives.
for await (const part of execStream(client, path.id, { shell: "echo one; sleep 0.5; echo two >&2" })) {
  console.log(part.stream ?? "end", JSON.stringify(part.data) ?? part.result?.verdict);
}

// Files.
const written = must(await client.PUT("/v1/sessions/{id}/files/content", {
  params: { path, query: { path: "dir/file", parents: true } }, body: "content\n", bodySerializer: (b) => b, headers: { "Content-Type": "application/octet-stream" },
}));
console.log(written.type, written.size);

// A process that goes on running, and its output, which survives connections and the daemon.
must(await client.POST("/v1/sessions/{id}/processes", { params: { path }, body: { id: "count", argv: ["sh", "-c", "for n in 1 2 3; do echo $n; done; exit 4"] } }));
let output = "";
for await (const part of follow(client, path.id, "count")) {
  if (part.kind === "data") output += new TextDecoder().decode(part.data);
  if (part.kind === "exit") console.log(JSON.stringify(output), part.verdict, part.code);
}

must(await client.DELETE("/v1/sessions/{id}", { params: { path } }));
