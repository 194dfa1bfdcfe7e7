// Client of boxd. Types and routes come from docs/openapi.json (schema.ts, which openapi-typescript has
// written); this file adds credentials, streams and the relay of managed processes. It runs in Node 20 and later, and
// in browsers where boxd lets them.
import createClient, { type Client as FetchClient } from "openapi-fetch";
import type { components, paths } from "./schema.js";

export type { components, paths } from "./schema.js";
export type Schemas = components["schemas"];

export interface Options {
  /** http://HOST:PORT or https://HOST of the daemon. */
  url: string;
  /** Token of the daemon's tokens_file. */
  token?: string;
  /** Whom requests are about, for callers who may choose. */
  tenant?: string;
}

// Without the types of media, data of an exec could be lines as well.
type Media = "application/json" | "application/problem+json";

/** The client: GET, POST and so on with the paths of the API, and what follows here. */
export type Boxd = FetchClient<paths, Media> & { options: Options };

export function boxd(options: Options): Boxd {
  const client = createClient<paths, Media>({ baseUrl: options.url, headers: headersOf(options) });
  return Object.assign(client, { options });
}

function headersOf(o: Options): Record<string, string> {
  return {
    ...(o.token ? { Authorization: `Bearer ${o.token}` } : {}),
    ...(o.tenant ? { "X-Boxd-Tenant": o.tenant } : {}),
  };
}

/** An error answer of the daemon: decide by problem.code, show the message to people. */
export class BoxdError extends Error {
  constructor(readonly problem: Schemas["Problem"]) {
    super(problem.detail || problem.title);
  }
}

/** The data of an answer, or else a BoxdError. */
export function must<T>(answer: { data?: T; error?: Schemas["Problem"] }): T {
  if (answer.error !== undefined) throw new BoxdError(answer.error);
  return answer.data as T;
}

/** Runs a command and yields its output as it arrives; the last part has the result. To stop reading ends the command. */
export async function* execStream(client: Boxd, id: string, body: Schemas["ExecRequest"]): AsyncGenerator<Schemas["ExecEvent"]> {
  const stream = must(await client.POST("/v1/sessions/{id}/exec", {
    params: { path: { id } }, body, headers: { Accept: "application/x-ndjson" }, parseAs: "stream",
  }));
  for await (const line of lines(stream as unknown as ReadableStream<Uint8Array>)) yield JSON.parse(line);
}

/** What happens, from the event after `since` on, or from now on. */
export async function* events(client: Boxd, since?: number): AsyncGenerator<Schemas["Event"]> {
  const stream = must(await client.GET("/v1/events", { params: { query: { last_event_id: since } }, parseAs: "stream" }));
  for await (const line of lines(stream as unknown as ReadableStream<Uint8Array>)) {
    if (line.startsWith("data: ")) yield JSON.parse(line.slice(6)); // of each event it is one line
  }
}

async function* lines(stream: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = stream.pipeThrough(new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>).getReader();
  try {
    for (let rest = ""; ; ) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop() ?? "";
      for (const line of parts) if (line !== "") yield line;
    }
  } finally {
    await reader.cancel();
  }
}

/** A part of the output of a managed process, bytes that are gone, or its end. */
export type Output =
  | { kind: "data"; stream: "stdout" | "stderr"; offset: number; data: Uint8Array }
  | { kind: "gap"; stream: "stdout" | "stderr"; offset: number; bytes: number }
  | { kind: "exit"; code: number | null; signal: number; verdict: string };

/**
 * Follows the output of a managed process from its beginning to its end, over as many connections and
 * daemons as that takes: no byte is missing or comes twice, and what is gone is a gap. It is an observer of the
 * relay (docs/relay.md): it does not write, and the process does not wait for it.
 *
 * WebSocket must be one that sends headers if there is a token, as that of Node 22 does.
 */
export async function* follow(client: Boxd, session: string, process: string, patience = 30_000): AsyncGenerator<Output> {
  const at = [0, 0]; // offsets of stdout and stderr
  let lost = 0; // since when nothing has come
  for (;;) {
    const url = new URL(`/v1/sessions/${encodeURIComponent(session)}/processes/${encodeURIComponent(process)}/relay`, client.options.url);
    url.protocol = url.protocol.replace("http", "ws");
    url.searchParams.set("since", `${at[0]},${at[1]}`);
    for await (const frame of frames(url, headersOf(client.options))) {
      lost = 0;
      const v = new DataView(frame.buffer, frame.byteOffset, frame.byteLength);
      const offset = (i: number) => Number(v.getBigUint64(i));
      const stream = v.getUint8(1) === 2 ? "stderr" : "stdout";
      const n = stream === "stderr" ? 1 : 0;
      switch (v.getUint8(0)) {
        case 0x02: {
          const data = frame.subarray(10);
          if (offset(2) !== at[n]) throw new Error(`${stream} continues at ${offset(2)}, not at ${at[n]}: it is another process`);
          yield { kind: "data", stream, offset: offset(2), data };
          at[n] = offset(2) + data.length;
          break;
        }
        case 0x03:
          yield { kind: "gap", stream, offset: offset(2), bytes: offset(10) - offset(2) };
          at[n] = offset(10);
          break;
        case 0x07: {
          const code = v.getInt16(1);
          const verdict = new TextDecoder().decode(frame.subarray(21, 21 + v.getUint8(20)));
          yield { kind: "exit", code: code < 0 ? null : code, signal: v.getUint8(3), verdict };
          return;
        }
      }
    }
    lost ||= Date.now();
    if (Date.now() - lost > patience) throw new Error(`the relay of ${process} cannot be reached`);
    // The WebSocket does not say why it was refused; this does.
    const answer = await client.GET("/v1/sessions/{id}/processes/{pid}", { params: { path: { id: session, pid: process } } }).catch(() => undefined);
    if (answer?.error && answer.response.status < 500) throw new BoxdError(answer.error);
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

/** The messages of a WebSocket until it closes or fails. */
async function* frames(url: URL, headers: Record<string, string>): AsyncGenerator<Uint8Array> {
  // The second argument of browsers has no headers; that of Node has.
  const socket = new (WebSocket as unknown as new (url: URL, options: object) => WebSocket)(url, { headers, protocols: ["boxd"] });
  socket.binaryType = "arraybuffer";
  const queue: Uint8Array[] = [];
  let closed = false;
  let wake = () => {};
  socket.onmessage = (e) => (queue.push(new Uint8Array(e.data as ArrayBuffer)), wake());
  socket.onclose = socket.onerror = () => ((closed = true), wake());
  try {
    for (;;) {
      for (let next; (next = queue.shift()); ) yield next;
      if (closed) return;
      await new Promise<void>((resolve) => (wake = resolve));
    }
  } finally {
    socket.close();
  }
}
