// One managed process: a terminal if it has one, otherwise what it writes.
import { useEffect, useRef, useState } from "preact/hooks";
import { APIError, download, get, login, mayChange, onLogin, processPath, relayProtocols, type Process, type Session } from "./api";
import { bytes } from "./format";
import { t, type Key } from "./i18n";
import { act, Loading, say, State, useLoad, Verdict } from "./parts";
import { Relay, type Exit, type Phase } from "./relay";
import type { Pane } from "./terminal";

/** Why a relay could not be made: it may be tried again unless the process is gone. */
async function processIsThere(session: Session, pid: string): Promise<boolean> {
  try {
    await get(processPath(session, pid), { tenant: session.tenant });
  } catch (e) {
    if (e instanceof APIError && e.status === 401) {
      await new Promise<void>((done) => {
        const stop = onLogin(() => login && (stop(), done()));
      });
    } else if (e instanceof APIError && (e.status === 404 || e.status === 403)) {
      return false;
    }
  }
  return true;
}

const relayURL = (session: Session, pid: string) => `${location.protocol === "https:" ? "wss:" : "ws:"}//${location.host}${processPath(session, pid)}/relay`;

export function ProcessView(p: { session: Session; pid: string }) {
  const { session, pid } = p;
  const loaded = useLoad((signal) => get<Process>(processPath(session, pid), { tenant: session.tenant, signal }), [session.tenant, session.id, pid], 5000);
  const process = loaded.data;
  return (
    <section aria-labelledby="process-title">
      <h2 id="process-title">{t("process")} <code>{pid}</code> {process && <State state={process.state} />} {process && <Verdict of={process} />}</h2>
      <Loading of={loaded} />
      {process && <p class="dim"><code class="wrap">{process.argv.join(" ")}</code></p>}
      {process?.failure && <p class="error">{process.failure}</p>}
      {process?.failure_output && <pre class="output">{process.failure_output}</pre>}
      {process && (process.tty ? <TerminalPane key={process.box} session={session} pid={pid} /> : <LogPane key={process.box} session={session} process={process} />)}
    </section>
  );
}

const readerKey = "boxd-screen-reader";

function TerminalPane(p: { session: Session; pid: string }) {
  const host = useRef<HTMLDivElement>(null);
  const leave = useRef<HTMLButtonElement>(null);
  const pane = useRef<Pane | null>(null);
  const [phase, setPhase] = useState<{ phase: Phase; reason?: string | undefined }>({ phase: "connecting" });
  const [writer, setWriter] = useState(false);
  const [exit, setExit] = useState<Exit | null>(null);
  const [reader, setReader] = useState(localStorage.getItem(readerKey) === "1");
  const [gone, setGone] = useState(0);
  useEffect(() => {
    let over = false;
    void import("./terminal").then(({ openTerminal }) => {
      if (over || !host.current) return;
      pane.current = openTerminal(host.current, {
        url: relayURL(p.session, p.pid),
        protocols: () => relayProtocols(p.session.tenant),
        mayRetry: () => processIsThere(p.session, p.pid),
        write: mayChange,
        label: t("terminalOf", { name: p.pid }),
        screenReader: reader,
        phase: (phase, reason) => setPhase({ phase, reason }),
        writer: setWriter,
        exit: setExit,
        gap: (n) => setGone((sum) => sum + n),
        refused: (text) => say(text, true),
        unsent: () => say(t("unsent"), true),
        leave: () => leave.current?.focus(),
      });
      pane.current.focus();
    });
    const stop = onLogin(() => login && pane.current?.retry());
    return () => {
      over = true;
      stop();
      pane.current?.dispose();
      pane.current = null;
    };
  }, []);
  const open = phase.phase === "open";
  return (
    <div class="terminal">
      <div class="bar">
        <span role="status">
          {t(`phase.${phase.phase}` as Key)}
          {phase.reason ? `: ${phase.reason}` : ""}
          {open && ` — ${writer ? t("youWrite") : t("youWatch")}`}
          {exit && ` — ${t(`verdict.${exit.verdict}` as Key)}${exit.code >= 0 ? ` (${exit.code})` : ""}`}
          {gone > 0 && ` — ${t("bytesGone", { n: bytes(gone) })}`}
        </span>
        {open && !writer && mayChange() && <button type="button" onClick={() => pane.current?.takeOver()}>{t("takeOver")}</button>}
        <label class="inline">
          <input
            type="checkbox"
            checked={reader}
            onChange={(e) => {
              setReader(e.currentTarget.checked);
              localStorage.setItem(readerKey, e.currentTarget.checked ? "1" : "0");
              pane.current?.setScreenReader(e.currentTarget.checked);
            }}
          />{" "}
          {t("screenReader")}
        </label>
        <button type="button" ref={leave} onClick={() => pane.current?.focus()}>{t("toTerminal")}</button>
        <small class="dim">{t("leaveTerminal")}</small>
      </div>
      <div class="screen" ref={host} />
    </div>
  );
}

const keptText = 400_000; // characters of output that the page keeps
// Sequences that terminals act on (ECMA-48: CSI, OSC and others) and control characters are not shown.
const controls = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]/g;

function LogPane(p: { session: Session; process: Process }) {
  const { session, process } = p;
  const [text, setText] = useState("");
  const [phase, setPhase] = useState<Phase>("connecting");
  const [stream, setStream] = useState<1 | 2>(1);
  const [gone, setGone] = useState(0);
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    const decoder = new TextDecoder();
    let all = "";
    let drawn = 0;
    const draw = () => {
      drawn = 0;
      const at = box.current;
      const atEnd = !at || at.scrollHeight - at.scrollTop - at.clientHeight < 40;
      setText(all.replace(controls, ""));
      if (atEnd) requestAnimationFrame(() => box.current?.scrollTo(0, box.current.scrollHeight));
    };
    setText("");
    setGone(0);
    const relay = new Relay({
      url: relayURL(session, process.id),
      protocols: () => relayProtocols(session.tenant),
      mayRetry: () => processIsThere(session, process.id),
      write: () => false,
      events: {
        data(n, piece, _old, done) {
          if (n === stream) {
            all += decoder.decode(piece, { stream: true });
            if (all.length > keptText) {
              const cut = all.length - keptText;
              setGone((sum) => sum + cut);
              all = all.slice(-keptText);
            }
            drawn ||= setTimeout(draw, 100);
          }
          done();
        },
        gap: (n, lost) => n === stream && setGone((sum) => sum + lost),
        phase: (phase) => setPhase(phase),
        writer: () => undefined,
        exit: () => undefined,
        refused: () => undefined,
        unsent: () => undefined,
      },
    });
    const stop = onLogin(() => login && relay.retry());
    return () => {
      stop();
      clearTimeout(drawn);
      relay.close();
    };
  }, [stream]);
  const name = stream === 1 ? "stdout" : "stderr";
  return (
    <div>
      <div class="bar">
        <label class="inline">
          {t("stream")}{" "}
          <select value={String(stream)} onChange={(e) => setStream(e.currentTarget.value === "2" ? 2 : 1)}>
            <option value="1">stdout</option>
            <option value="2">stderr</option>
          </select>
        </label>
        <span role="status">{t(`phase.${phase}` as Key)}{gone > 0 && ` — ${t("bytesGone", { n: bytes(gone) })}`}</span>
        <button
          type="button"
          onClick={() =>
            act(() => download(`${processPath(session, process.id)}/logs?stream=${name}`, session.tenant, `${session.id}-${process.id}.${name}.log`, () => undefined, new AbortController().signal))
          }
        >
          {t("download")}
        </button>
      </div>
      <pre class="output log" ref={box} tabindex={0} aria-label={t("outputOf", { name: process.id })}>{text || " "}</pre>
    </div>
  );
}
