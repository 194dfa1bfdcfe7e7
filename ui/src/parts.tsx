// What the views share: loading, time, dialogs, messages, and small pieces of markup.
import type { ComponentChildren, TargetedEvent } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { APIError, onLogin, login } from "./api";
import { t, type Key } from "./i18n";

/** The error as a sentence. What the daemon says is shown as it is. */
export function explain(e: unknown): string {
  if (!(e instanceof APIError)) return e instanceof Error ? e.message : String(e);
  if (e.code === "unreachable") return t("unreachable");
  if (e.code === "aborted") return t("canceled");
  if (e.code === "unauthenticated") return t("signInAgain");
  return e.message;
}

export interface Loaded<T> {
  data: T | undefined;
  error: unknown;
  reload(): void;
}

/**
 * Loads, again every so many milliseconds while the page is visible, and after a new login. A load that takes
 * longer than that is not overtaken by the next. With other deps what was loaded is forgotten.
 */
export function useLoad<T>(load: (signal: AbortSignal) => Promise<T>, deps: unknown[], every = 0): Loaded<T> {
  const [state, setState] = useState<{ data?: T; error?: unknown; of?: string }>({});
  const again = useRef<() => void>(() => undefined);
  const of = JSON.stringify(deps);
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    let busy = false;
    let wanted = false;
    const run = async () => {
      clearTimeout(timer);
      if (busy) {
        wanted = true;
        return;
      }
      busy = true;
      wanted = false;
      try {
        if (login) {
          const data = await load(stop.signal);
          if (!stop.signal.aborted) setState({ data, of });
        }
      } catch (error) {
        if (!stop.signal.aborted) setState((old) => ({ ...(old.of === of && old.data !== undefined ? { data: old.data } : {}), error, of }));
      }
      busy = false;
      if (stop.signal.aborted) return;
      if (wanted) void run();
      else if (every > 0) timer = setTimeout(() => (document.hidden ? undefined : void run()), every);
    };
    const visible = () => !document.hidden && void run();
    const stopListening = onLogin(() => login && void run());
    if (every > 0) document.addEventListener("visibilitychange", visible);
    again.current = () => void run();
    void run();
    return () => {
      stop.abort();
      clearTimeout(timer);
      stopListening();
      document.removeEventListener("visibilitychange", visible);
    };
  }, [of, every]);
  const current = state.of === of;
  return { data: current ? state.data : undefined, error: current ? state.error : undefined, reload: () => again.current() };
}

const ticks = new Set<() => void>();
setInterval(() => ticks.forEach((f) => f()), 1000);

/** The time now in ms, anew each second. */
export function useNow(): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const f = () => setNow(Date.now());
    ticks.add(f);
    return () => void ticks.delete(f);
  }, []);
  return now;
}

// Messages: a region that screen readers read out.
export interface Message {
  id: number;
  text: string;
  bad: boolean;
}
let messages: Message[] = [];
let showMessages: (m: Message[]) => void = () => undefined;
let messageID = 0;

/** Shows a message for some seconds; an error until it is dismissed. */
export function say(text: string, bad = false): void {
  const m = { id: ++messageID, text, bad };
  messages = [...messages.slice(-3), m];
  showMessages(messages);
  if (!bad) setTimeout(() => dismiss(m.id), 6000);
}

function dismiss(id: number): void {
  messages = messages.filter((m) => m.id !== id);
  showMessages(messages);
}

export function Messages() {
  const [list, setList] = useState(messages);
  showMessages = setList;
  return (
    <div class="messages">
      <div role="status" aria-live="polite">
        {list.filter((m) => !m.bad).map((m) => <p key={m.id} class="message">{m.text}</p>)}
      </div>
      <div role="alert">
        {list.filter((m) => m.bad).map((m) => (
          <p key={m.id} class="message bad">
            {m.text} <button type="button" class="quiet" onClick={() => dismiss(m.id)}>{t("dismiss")}</button>
          </p>
        ))}
      </div>
    </div>
  );
}

/** Does what a button asks for, and says how it went. */
export async function act(what: () => Promise<unknown>, done?: string): Promise<boolean> {
  try {
    await what();
    if (done) say(done);
    return true;
  } catch (e) {
    say(explain(e), true);
    return false;
  }
}

/** A modal dialog. The browser keeps the focus in it; behind it the focus is where it was. */
export function Dialog(p: { title: string; onClose(): void; children: ComponentChildren; fixed?: boolean }) {
  const ref = useRef<HTMLDialogElement>(null);
  const over = useRef(false);
  useLayoutEffect(() => {
    const d = ref.current!;
    const before = document.activeElement;
    d.showModal();
    return () => {
      over.current = true;
      d.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={ref}
      aria-labelledby="dialog-title"
      onCancel={(e) => {
        e.preventDefault();
        if (!p.fixed) p.onClose();
      }}
      onClose={() => {
        // The browser closes it all the same when Escape is pressed twice.
        if (over.current) return;
        if (p.fixed) ref.current!.showModal();
        else p.onClose();
      }}
    >
      <h2 id="dialog-title">{p.title}</h2>
      {p.children}
    </dialog>
  );
}

/** A question before something that ends work, or, if it is mild, interrupts it. */
export function Confirm(p: { title: string; text: string; yes: string; mild?: boolean; onClose(): void; action(): Promise<unknown>; done?: string }) {
  const [busy, setBusy] = useState(false);
  return (
    <Dialog title={p.title} onClose={p.onClose}>
      <p class="prewrap">{p.text}</p>
      <div class="actions">
        <button type="button" autofocus onClick={p.onClose}>{t("cancel")}</button>
        <button
          type="button"
          class={p.mild ? "primary" : "danger"}
          disabled={busy}
          onClick={async () => {
            setBusy(true);
            await act(p.action, p.done);
            p.onClose();
          }}
        >
          {p.yes}
        </button>
      </div>
    </Dialog>
  );
}

/** A form in a dialog: what the daemon refuses is shown in it. */
export function FormDialog(p: { title: string; submit: string; onClose(): void; action(values: (name: string) => string): Promise<unknown>; done?: string; children: ComponentChildren }) {
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const submit = async (e: TargetedEvent<HTMLFormElement, SubmitEvent>) => {
    e.preventDefault();
    const data = new FormData(e.currentTarget);
    setBusy(true);
    setError("");
    try {
      await p.action((name) => String(data.get(name) ?? "").trim());
      if (p.done) say(p.done);
      p.onClose();
    } catch (cause) {
      setError(explain(cause));
      setBusy(false);
    }
  };
  return (
    <Dialog title={p.title} onClose={p.onClose}>
      <form onSubmit={submit}>
        {p.children}
        <p role="alert" class="error">{error}</p>
        <div class="actions">
          <button type="button" onClick={p.onClose}>{t("cancel")}</button>
          <button type="submit" class="primary" disabled={busy}>{p.submit}</button>
        </div>
      </form>
    </Dialog>
  );
}

const kinds = { text: { type: "text" }, password: { type: "password" }, number: { type: "number", min: 0, step: "any" } } as const;

export function Field(p: { label: string; name: string; value?: string; hint?: string; required?: boolean; type?: "text" | "password" | "number"; placeholder?: string; autofocus?: boolean }) {
  const id = `field-${p.name}`;
  return (
    <p class="field">
      <label for={id}>{p.label}</label>
      <input
        id={id}
        name={p.name}
        {...kinds[p.type ?? "text"]}
        defaultValue={p.value}
        required={p.required}
        placeholder={p.placeholder}
        autofocus={p.autofocus}
        autocomplete="off"
        autocapitalize="off"
        spellcheck={false}
        aria-describedby={p.hint ? `${id}-hint` : undefined}
      />
      {p.hint && <small id={`${id}-hint`}>{p.hint}</small>}
    </p>
  );
}

/** What there is to show of something that is loaded: an error, that it is coming, or nothing. */
export function Loading(p: { of: Loaded<unknown> }) {
  if (p.of.error !== undefined && !(p.of.error instanceof APIError && p.of.error.status === 401)) return <p role="alert" class="error">{explain(p.of.error)}</p>;
  if (p.of.data === undefined) return <p class="dim">{t("loading")}</p>;
  return null;
}

export interface Column<T> {
  label: string;
  cell(row: T): ComponentChildren;
  wide?: boolean;
  hidden?: boolean; // the label is for screen readers only
}

const rowsAtFirst = 200; // of a table; more are drawn on request

/** A table; on a narrow screen each row is a card, with the labels beside the values. */
export function Table<T>(p: { caption: string; rows: T[]; columns: Column<T>[]; id(row: T): string | number; empty: string }) {
  const [most, setMost] = useState(rowsAtFirst);
  if (p.rows.length === 0) return <p class="dim">{p.empty}</p>;
  const hidden = p.rows.length - most;
  return (
    <>
      <table role="table">
        <caption class="unseen">{p.caption}</caption>
        <thead role="rowgroup">
          <tr role="row">
            {p.columns.map((c) => <th key={c.label} role="columnheader" scope="col"><span class={c.hidden ? "unseen" : ""}>{c.label}</span></th>)}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {p.rows.slice(0, most).map((r) => (
            <tr key={p.id(r)} role="row">
              {p.columns.map((c) => <td key={c.label} role="cell" data-label={c.hidden ? "" : c.label} class={c.wide ? "wide" : ""}>{c.cell(r)}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
      {hidden > 0 && <p><button type="button" onClick={() => setMost(most + rowsAtFirst)}>{t("showMore", { n: hidden })}</button></p>}
    </>
  );
}

export function Badge(p: { kind: "good" | "bad" | "warn" | "plain"; children: ComponentChildren }) {
  return <span class={`badge ${p.kind}`}>{p.children}</span>;
}

const stateKinds: Record<string, "good" | "bad" | "warn"> = { running: "good", ready: "good", failed: "bad", unready: "bad", creating: "warn", paused: "warn", starting: "warn", stopping: "warn", restarting: "warn" };

/** The state of a session or process, translated. */
export function State(p: { state: string }) {
  return <Badge kind={stateKinds[p.state] ?? "plain"}>{t(`state.${p.state}` as Key)}</Badge>;
}

/** How a command ended. */
export function Verdict(p: { of: { verdict?: string; exit_code: number | null; signal?: string; limit?: string } }) {
  const { verdict, exit_code, signal, limit } = p.of;
  if (!verdict) return null;
  const kind = verdict !== "exited" ? "bad" : exit_code === 0 ? "good" : "warn";
  const more = [exit_code !== null ? String(exit_code) : "", signal ?? "", limit ?? ""].filter(Boolean).join(", ");
  return <Badge kind={kind}>{t(`verdict.${verdict}` as Key)}{more && ` (${more})`}</Badge>;
}

/** How much of a limit is used; a limit below 0 or none is no limit. */
export function Meter(p: { label: string; used: number | undefined; limit: number | undefined; format(n: number): string }) {
  const bounded = p.limit !== undefined && p.limit > 0;
  const used = p.used;
  const text = used === undefined ? t("unknown") : bounded ? t("usedOf", { used: p.format(used), limit: p.format(p.limit!) }) : t("usedUnlimited", { used: p.format(used) });
  const high = bounded && used !== undefined && used > 0.9 * p.limit!;
  return (
    <div class="meter">
      <span>{p.label}</span>
      <span class={high ? "high" : ""}>{text}{high && ` — ${t("nearLimit")}`}</span>
      {bounded && used !== undefined && <progress class={high ? "high" : ""} aria-label={p.label} max={1} value={Math.min(1, used / p.limit!)} />}
    </div>
  );
}
