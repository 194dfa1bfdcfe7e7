// The API of the daemon, with the types of its OpenAPI document, and the login of this page.
import type { components } from "./schema";

type Schemas = components["schemas"];
export type Session = Schemas["Session"];
export type Process = Schemas["Process"];
export type Problem = Schemas["Problem"];
export type Login = Schemas["Login"];
export type Status = Schemas["Status"];
export type Doctor = Schemas["Doctor"];
export type Usage = Schemas["Usage"];
export type Network = Schemas["Network"];
export type Connection = Schemas["Connection"];
export type Port = Schemas["Port"];
export type PortList = Schemas["PortList"];
export type FileInfo = Schemas["FileInfo"];
export type ExecRecord = Schemas["ExecRecord"];
export type BoxEvent = Schemas["Event"];
export type ErrorRecord = Schemas["ErrorRecord"];
export type Profile = Schemas["Profile"];
export type Link = Schemas["Link"];

/** An answer of the daemon that is an error, or no answer at all (status 0). */
export class APIError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
    readonly retryAfter = 0,
  ) {
    super(detail);
  }
}

// The secret is kept for other tabs and for reloads. It is of no use without the cookie, which scripts
// cannot read.
const secretKey = "boxd-page";
const secret = (): string => localStorage.getItem(secretKey) ?? "";

/** Who is signed in; null: nobody. */
export let login: Login | null = null;
const listeners = new Set<() => void>();

/** Calls f whenever somebody signs in or the login ends; the result stops that. */
export function onLogin(f: () => void): () => void {
  listeners.add(f);
  return () => listeners.delete(f);
}

function setLogin(l: Login | null): void {
  login = l;
  for (const f of [...listeners]) f();
}

/** Whether the caller may change things. The daemon decides; this is for what to offer. */
export const mayChange = (): boolean => login !== null && login.role !== "viewer";

export const sessionPath = (s: { id: string }): string => `/v1/sessions/${encodeURIComponent(s.id)}`;
export const processPath = (s: { id: string }, pid: string): string => `${sessionPath(s)}/processes/${encodeURIComponent(pid)}`;

/** Whether the caller may see what belongs to the host and to all tenants. */
export const seesAll = (): boolean => login?.all_tenants === true;

/** The tenant that lists are about: all of them, if the caller may see all. */
export const listTenant = (): string => (seesAll() ? "*" : "");

export function headers(tenant: string, more: Record<string, string> = {}): Record<string, string> {
  const h: Record<string, string> = { "X-Boxd-Page": secret(), ...more };
  if (tenant && seesAll()) h["X-Boxd-Tenant"] = tenant;
  return h;
}

/** Sub-protocols of a relay, which say who asks and for which tenant: a WebSocket has no headers of its own. */
export function relayProtocols(tenant: string): string[] {
  const list = ["boxd", `boxd.page.${secret()}`];
  if (tenant && seesAll()) list.push(`boxd.tenant.${tenant}`);
  return list;
}

async function problem(r: { status: number; text(): Promise<string> }): Promise<APIError> {
  const text = await r.text().catch(() => "");
  try {
    const p = JSON.parse(text) as Problem;
    return new APIError(r.status, p.code, p.detail || p.title, p.retry_after ?? 0);
  } catch {
    return new APIError(r.status, "", text.slice(0, 200) || `HTTP ${r.status}`);
  }
}

/** Makes an error of an answer that is one. 401 ends the login of the page. */
export async function checked(r: Response): Promise<Response> {
  if (r.ok) return r;
  const e = await problem(r);
  if (e.status === 401) setLogin(null);
  throw e;
}

export const pause = (ms: number, signal?: AbortSignal): Promise<void> =>
  new Promise((done) => {
    const t = setTimeout(done, ms);
    signal?.addEventListener("abort", () => (clearTimeout(t), done()), { once: true });
  });

interface Call {
  method?: string;
  tenant?: string;
  body?: unknown;
  signal?: AbortSignal;
}

/** The answer of the daemon, which is no error. A read that came too often is repeated once, when the daemon says so. */
export async function request(path: string, c: Call = {}): Promise<Response> {
  const method = c.method ?? "GET";
  const init: RequestInit = { method, headers: headers(c.tenant ?? "", c.body === undefined ? {} : { "Content-Type": "application/json" }), cache: "no-store" };
  if (c.body !== undefined) init.body = JSON.stringify(c.body);
  if (c.signal) init.signal = c.signal;
  for (let attempt = 0; ; attempt++) {
    try {
      return await checked(await fetch(path, init));
    } catch (e) {
      if (e instanceof TypeError) throw new APIError(0, "unreachable", "");
      if (!(e instanceof APIError) || e.status !== 429 || e.code !== "rate_limited" || method !== "GET" || attempt > 0 || e.retryAfter > 30) throw e;
      await pause(1000 * e.retryAfter, c.signal);
      if (c.signal?.aborted) throw e;
    }
  }
}

/** The JSON of an answer. */
export async function get<T>(path: string, c: Call = {}): Promise<T> {
  return (await (await request(path, c)).json()) as T;
}

/** Signs in with a token. */
export async function signIn(token: string): Promise<void> {
  let r: Response;
  try {
    r = await fetch("/v1/login", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }) });
  } catch {
    throw new APIError(0, "unreachable", "");
  }
  if (!r.ok) throw await problem(r);
  const l = (await r.json()) as Login;
  localStorage.setItem(secretKey, l.page ?? "");
  setLogin(l);
}

/** Finds out whether this page is signed in already, and makes the login last longer. */
export async function renew(): Promise<void> {
  const used = secret();
  try {
    const l = await get<Login>("/v1/login");
    if (JSON.stringify({ ...l, expires_at: "" }) !== JSON.stringify({ ...login, expires_at: "", page: undefined })) setLogin(l);
  } catch (e) {
    if (!(e instanceof APIError && e.status === 401)) throw e;
    if (!used) return;
    // What is left of an ended login must not hide a client certificate.
    if (secret() === used) localStorage.setItem(secretKey, "");
    await renew();
  }
}

// Signing in or out in one tab is that of all.
addEventListener("storage", (e) => {
  if (e.key !== secretKey) return;
  if (e.newValue === null) location.reload();
  else void renew().catch(() => undefined);
});

export async function signOut(): Promise<void> {
  await request("/v1/login", { method: "DELETE" });
  localStorage.removeItem(secretKey);
  location.reload(); // nothing stays of what was shown
}

const firstPause = 500; // ms before a lost stream is asked for again; it doubles
const longestPause = 10_000;

const hiddenFor = 10_000; // ms after which a hidden page gives its connection back: browsers have six for all pages of an origin

/** Ends when the page has been hidden for a while, or with signal. */
function whileVisible(signal: AbortSignal): { signal: AbortSignal; done(): void } {
  const stop = new AbortController();
  let timer = 0;
  const look = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => stop.abort(), hiddenFor);
  };
  const end = () => stop.abort();
  document.addEventListener("visibilitychange", look);
  signal.addEventListener("abort", end);
  look();
  return {
    signal: stop.signal,
    done() {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", look);
      signal.removeEventListener("abort", end);
    },
  };
}

/** Waits for an event of the document or the login, or for the end of signal. */
function until(ready: () => boolean, signal: AbortSignal): Promise<void> {
  return new Promise((done) => {
    const look = () => {
      if (!ready() && !signal.aborted) return;
      stop();
      document.removeEventListener("visibilitychange", look);
      signal.removeEventListener("abort", look);
      done();
    };
    const stop = onLogin(look);
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
    look();
  });
}

/**
 * Follows the events of the daemon until signal ends, over lost connections and new logins. missed is called
 * when events were lost: what they would have changed must be read again.
 */
export async function follow(event: (e: BoxEvent) => void, missed: () => void, signal: AbortSignal): Promise<void> {
  let last = "";
  let wait = firstPause;
  while (!signal.aborted) {
    await until(() => login !== null && !document.hidden, signal);
    const visible = whileVisible(signal);
    try {
      const h = headers(listTenant(), last ? { "Last-Event-ID": last } : {});
      const r = await checked(await fetch("/v1/events", { headers: h, signal: visible.signal, cache: "no-store" }));
      if (!last) missed();
      for await (const block of blocks(r.body!)) {
        wait = firstPause;
        const field = (name: string) => block.split("\n").find((l) => l.startsWith(`${name}: `))?.slice(name.length + 2) ?? "";
        last = field("id") || last;
        if (field("event") === "missed") missed();
        else if (field("data")) event(JSON.parse(field("data")) as BoxEvent);
      }
    } catch {
      // A connection that was lost or refused is asked for again.
    }
    visible.done();
    await pause(wait, signal);
    wait = Math.min(2 * wait, longestPause);
  }
}

/** The blocks of a text between empty lines. */
async function* blocks(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += decoder.decode(value, { stream: true });
      const parts = text.split("\n\n");
      text = parts.pop()!;
      yield* parts;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/** Sends a file; progress is told in bytes. */
export function upload(path: string, tenant: string, file: Blob, progress: (bytes: number) => void, signal: AbortSignal): Promise<void> {
  return new Promise((done, failed) => {
    const x = new XMLHttpRequest(); // fetch does not tell how much it has sent
    x.open("PUT", path);
    for (const [name, value] of Object.entries(headers(tenant, { "Content-Type": "application/octet-stream" }))) x.setRequestHeader(name, value);
    x.upload.onprogress = (e) => progress(e.loaded);
    x.onload = async () => {
      if (x.status < 300) return done();
      const e = await problem({ status: x.status, text: async () => x.responseText });
      if (e.status === 401) setLogin(null);
      failed(e);
    };
    x.onerror = () => failed(new APIError(0, "unreachable", ""));
    x.onabort = () => failed(new APIError(0, "aborted", ""));
    signal.addEventListener("abort", () => x.abort(), { once: true });
    x.send(file);
  });
}

/** Reads a file and hands it to the browser as a download; progress is told in bytes. */
export async function download(path: string, tenant: string, name: string, progress: (bytes: number) => void, signal: AbortSignal): Promise<void> {
  const r = await request(path, { tenant, signal });
  const reader = r.body!.getReader();
  const parts: BlobPart[] = [];
  for (let n = 0; ; ) {
    const { value, done } = await reader.read();
    if (done) break;
    parts.push(value as Uint8Array<ArrayBuffer>);
    progress((n += value.length));
  }
  const url = URL.createObjectURL(new Blob(parts, { type: "application/octet-stream" }));
  const a = document.createElement("a");
  a.href = url;
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
