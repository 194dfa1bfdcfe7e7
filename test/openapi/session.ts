// Drives a session with a client that openapi-typescript generated from
// docs/openapi.json. That it compiles is half of the test: values have the types that a
// user of such a client needs, without a cast.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type ExecEvent = components["schemas"]["ExecEvent"];

declare const process: { argv: string[] };

function check(what: string, ok: boolean, seen?: unknown): asserts ok {
  if (!ok) throw new Error(`${what}: ${JSON.stringify(seen)}`);
}

const [url] = process.argv.slice(2);
// Without the types of media, data of an exec could be lines as well.
const api = createClient<paths, "application/json" | "application/problem+json">({ baseUrl: url });
const path = { id: "generated" };

const made = await api.POST("/v1/sessions", { body: { id: path.id, memory: "64M", idle_ttl: "1m30s" } });
check("making a session", made.data !== undefined, made.error);
const memory: number = made.data.memory;
const ttl: number = made.data.idle_ttl;
const state: "creating" | "running" | "stopping" | "stopped" | "failed" = made.data.state;
check("numbers and states", memory === 64 << 20 && ttl === 90 && state === "running", made.data);

const ran = await api.POST("/v1/sessions/{id}/exec", { params: { path }, body: { shell: "cat; exit 3", stdin: "hello", timeout: 20 } });
check("exec", ran.data !== undefined, ran.error);
const code: number | null = ran.data.exit_code;
const seconds: number = ran.data.receipt.wall;
check("exec", code === 3 && ran.data.stdout === "hello" && ran.data.verdict === "exited" && seconds > 0, ran.data);

const killed = await api.POST("/v1/sessions/{id}/exec", { params: { path }, body: { shell: "kill -9 $$" } });
check("a signal", killed.data?.exit_code === null && killed.data.signal === "SIGKILL" && killed.data.verdict === "signaled", killed.data ?? killed.error);

const streamed = await api.POST("/v1/sessions/{id}/exec", {
  params: { path }, body: { shell: "echo out; echo err >&2" }, headers: { Accept: "application/x-ndjson" }, parseAs: "text",
});
check("streamed exec", streamed.data !== undefined, streamed.error);
check("its type", streamed.response.headers.get("Content-Type") === "application/x-ndjson");
const text: string = streamed.data;
const lines = text.trim().split("\n").map((line): ExecEvent => JSON.parse(line));
check("its lines", lines.length === 3 && lines[2]?.result?.exit_code === 0 &&
  lines.some((e) => e.stream === "stdout" && e.data === "out\n") && lines.some((e) => e.stream === "stderr" && e.data === "err\n"), lines);

const refused = await api.POST("/v1/sessions/{id}/exec", { params: { path }, body: { argv: ["no-such-program"] } });
check("a refusal", refused.error?.code === "program_not_found" && refused.error.field === "argv" && refused.response.status === 422, refused);
const nowhere = await api.GET("/v1/sessions/{id}", { params: { path: { id: "none" } } });
check("a missing session", nowhere.error?.code === "session_not_found" && nowhere.response.status === 404, nowhere);

const pid = { ...path, pid: "p" };
const started = await api.POST("/v1/sessions/{id}/processes", { params: { path }, body: { id: pid.pid, argv: ["cat"], history: "64K" } });
check("starting a process", started.data?.state === "running" && started.data.history === 65536, started.data ?? started.error);
const stopped = await api.POST("/v1/sessions/{id}/processes/{pid}/stop", { params: { path: pid } });
check("stopping it without a body", stopped.data?.state === "stopped", stopped.data ?? stopped.error);

const written = await api.PUT("/v1/sessions/{id}/files/content", {
  params: { path, query: { path: "dir/file", parents: true } }, body: "content", bodySerializer: (body) => body,
  headers: { "Content-Type": "application/octet-stream" },
});
check("writing a file", written.data?.size === 7 && written.data.type === "file", written.data ?? written.error);
const read = await api.GET("/v1/sessions/{id}/files/content", { params: { path, query: { path: "dir/file" } }, parseAs: "text" });
check("reading it", read.data === "content", read.data ?? read.error);

const events = await api.GET("/v1/events", { params: { query: { last_event_id: 1 } }, parseAs: "stream" });
check("events", events.data !== undefined && events.data !== null, events.error);
const reader = events.data.getReader();
const first = await reader.read();
check("an event", first.value !== undefined && new TextDecoder().decode(first.value).includes("data: "), first);
await reader.cancel();

const removed = await api.DELETE("/v1/sessions/{id}", { params: { path } });
check("removing the session", removed.response.status === 204, removed.error);
