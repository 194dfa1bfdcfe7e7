// One session, with all that is in it.
import { useState } from "preact/hooks";
import { APIError, get, mayChange, processPath, request, sessionPath, type BoxEvent, type Connection, type ExecRecord, type Link, type Network, type Port, type PortList, type Process, type Session, type Status, type Usage } from "./api";
import { EventList } from "./events";
import { Files } from "./files";
import { bytes, clock, length, limit, number, time, took } from "./format";
import { History } from "./history";
import { t, type Key } from "./i18n";
import { act, Badge, Confirm, explain, Field, FormDialog, Loading, Meter, say, State, Table, useLoad, Verdict } from "./parts";
import { ProcessView } from "./process";
import { Countdown, PauseButton, PauseSession, sessionHref, shownState, StopSession, useEvents } from "./sessions";

const tabs = ["overview", "processes", "files", "ports", "network", "history", "events"] as const;
const usageEvery = 2000; // ms

export function SessionView(p: { tenant: string; id: string; tab: string; arg: string; events: BoxEvent[]; epoch: number }) {
  const { tenant, id } = p;
  const path = sessionPath({ id });
  const loaded = useLoad((signal) => get<Session>(path, { tenant, signal }), [tenant, id], 10_000);
  const mine = (e: BoxEvent) => e.session === id && e.tenant === tenant;
  useEvents(p.events, p.epoch, (e) => mine(e) && e.type !== "network-connection", loaded.reload);
  const [dialog, setDialog] = useState<"extend" | "pause" | "stop" | null>(null);
  const s = loaded.data;
  const gone = loaded.error instanceof APIError && loaded.error.status === 404;
  return (
    <>
      <p><a href="#/sessions">← {t("nav.sessions")}</a></p>
      <div class="bar">
        <h1>{id}</h1>
        {s && !gone && <State state={shownState(s)} />}
        {s?.sensitive && <Badge kind="warn">{t("sensitive")}</Badge>}
        {s && !gone && <span>{t("endsIn")} <Countdown of={s} /></span>}
        {s && !gone && mayChange() && (
          <span class="actions">
            <button type="button" onClick={() => setDialog("extend")}>{t("extend")}</button>
            <PauseButton session={s} ask={() => setDialog("pause")} onResumed={loaded.reload} />
            <button type="button" class="danger" onClick={() => setDialog("stop")}>{t("stop")}</button>
          </span>
        )}
      </div>
      {s?.name && <p class="dim">{s.name}</p>}
      <p role="status" class="paused">{s?.paused_at && !gone && `${t("pausedSince", { since: time(s.paused_at) })}${s.auto_resume ? ` ${t("autoResume")}` : ""}`}</p>
      <Loading of={loaded} />
      {s && !gone && (
        <>
          <nav class="tabs" aria-label={t("partsOf", { id })}>
            {tabs.map((one) => <a key={one} href={sessionHref(s, one)} aria-current={p.tab === one ? "page" : undefined}>{t(`tab.${one}`)}</a>)}
          </nav>
          {p.tab === "processes" ? (
            p.arg ? <ProcessView key={p.arg} session={s} pid={p.arg} /> : <Processes session={s} events={p.events.filter(mine)} epoch={p.epoch} />
          ) : p.tab === "files" ? (
            <Files session={s} path={p.arg} />
          ) : p.tab === "ports" ? (
            <Ports session={s} />
          ) : p.tab === "network" ? (
            <NetworkView session={s} />
          ) : p.tab === "history" ? (
            <History session={s} />
          ) : p.tab === "events" ? (
            <EventList events={p.events.filter(mine)} inSession />
          ) : (
            <Overview session={s} />
          )}
        </>
      )}
      {s && dialog === "pause" && <PauseSession session={s} onClose={() => setDialog(null)} onPaused={loaded.reload} />}
      {s && dialog === "stop" && <StopSession session={s} onClose={() => setDialog(null)} onStopped={() => (location.hash = "#/sessions")} />}
      {s && dialog === "extend" && (
        <FormDialog
          title={t("extendTitle", { id })}
          submit={t("extend")}
          done={t("extended")}
          onClose={() => setDialog(null)}
          action={async (value) => {
            const body: Record<string, unknown> = {};
            if (value("idle_ttl")) body.idle_ttl = value("idle_ttl");
            if (value("max_lifetime")) body.max_lifetime = value("max_lifetime") === "0" ? 0 : value("max_lifetime");
            await request(path, { method: "PATCH", tenant, body });
            loaded.reload();
          }}
        >
          <Field label={t("idleTTL")} name="idle_ttl" value={String(Math.round(s.idle_ttl))} hint={t("idleHint", { since: time(s.last_used_at) })} autofocus />
          <Field label={t("maxLifetime")} name="max_lifetime" value={String(Math.round(s.max_lifetime))} hint={t("lifetimeHint", { since: time(s.created_at) })} />
        </FormDialog>
      )}
    </>
  );
}

function Fact(p: { label: string; value: preact.ComponentChildren }) {
  if (p.value === undefined || p.value === "" || p.value === null) return null;
  return <div><dt>{p.label}</dt><dd>{p.value}</dd></div>;
}

/** Seconds of processor time per second between the last two answers. */
function useUsage(s: Session): { usage: Usage | undefined; cpu: number | undefined } {
  const [last, setLast] = useState<{ at: number; cpu: number; rate?: number | undefined } | null>(null);
  const loaded = useLoad(
    async (signal) => {
      const usage = await get<Usage>(`${sessionPath(s)}/usage`, { tenant: s.tenant, signal });
      const at = performance.now();
      const cpu = usage.cpu;
      if (cpu !== undefined) {
        setLast((old) => ({ at, cpu, rate: old && cpu >= old.cpu && at > old.at ? (cpu - old.cpu) / ((at - old.at) / 1000) : undefined }));
      }
      return usage;
    },
    [s.tenant, s.id, s.box],
    usageEvery,
  );
  return { usage: loaded.data, cpu: last?.rate };
}

function Overview(p: { session: Session }) {
  const s = p.session;
  const { usage, cpu } = useUsage(s);
  const ended = useLoad((signal) => get<{ execs: ExecRecord[] }>(`${sessionPath(s)}/execs?limit=5`, { tenant: s.tenant, signal }), [s.tenant, s.id, s.execs, s.processes]);
  return (
    <div class="columns">
      <section aria-labelledby="use-title">
        <h2 id="use-title">{t("useAndLimits")}</h2>
        <Meter label={t("memory")} used={usage?.memory} limit={s.memory} format={bytes} />
        <Meter label={t("cpus")} used={cpu} limit={s.cpus} format={(n) => number(n, 2)} />
        <Meter label={t("pids")} used={usage?.pids} limit={s.pids} format={number} />
        {s.workspace_mode !== "none" && <Meter label={t("workspaceMeasured")} used={s.workspace_bytes ?? 0} limit={s.workspace_size} format={bytes} />}
        {usage?.throttled !== undefined && <p class="dim">{t("throttled", { time: took(usage.throttled) })}</p>}
        {s.unenforced && <p class="error">{t("unenforced")}: {s.unenforced}</p>}
        {s.warnings?.map((w) => <p key={w} class="error">{w}</p>)}
        <h2>{t("lastVerdicts")}</h2>
        {ended.data && (
          <Table
            caption={t("lastVerdicts")}
            rows={ended.data.execs}
            id={(e) => e.id}
            empty={t("nothingEnded")}
            columns={[
              { label: t("endedAt"), cell: (e) => clock(e.ended_at) },
              { label: t("command"), wide: true, cell: (e) => <code class="wrap">{e.process ? `${e.process}: ` : ""}{e.argv?.join(" ") ?? ""}</code> },
              { label: t("verdict"), cell: (e) => <Verdict of={e} /> },
            ]}
          />
        )}
      </section>
      <section aria-labelledby="settings-title">
        <h2 id="settings-title">{t("settings")}</h2>
        <dl>
          <Fact label={t("tenant")} value={s.tenant} />
          <Fact label={t("profile")} value={s.profile} />
          <Fact label={t("image")} value={s.image} />
          <Fact label={t("digest")} value={s.image_digest && <code class="wrap">{s.image_digest}</code>} />
          <Fact label={t("network")} value={s.network ? s.network_off ?? t("on") : t("off")} />
          <Fact label={t("sensitive")} value={s.sensitive && `${time(s.sensitive.since)}: ${s.sensitive.reason}`} />
          <Fact label={t("created")} value={time(s.created_at)} />
          <Fact label={t("lastUsed")} value={time(s.last_used_at)} />
          <Fact label={t("idleTTL")} value={length(s.idle_ttl)} />
          <Fact label={t("maxLifetime")} value={s.max_lifetime > 0 ? length(s.max_lifetime) : t("unlimited")} />
          <Fact label={t("retain")} value={s.retain} />
          <Fact label={t("timeout")} value={`${length(s.timeout)} (${t("atMost")} ${limit(s.timeout_cap, length)})`} />
          <Fact label={t("user")} value={`${s.user.uid}:${s.user.gid}`} />
          <Fact label={t("workspace")} value={`${s.workspace_target} (${s.workspace_mode})`} />
          <Fact label={t("writableRoot")} value={s.writable_root ? t("yes") : t("no")} />
          <Fact label={t("tmpSize")} value={bytes(s.tmp_size)} />
          <Fact label={t("hostname")} value={s.hostname} />
          <Fact label={t("box")} value={s.box && <>{s.box} ({t("generation", { n: s.generation })})</>} />
          <Fact label={t("reason")} value={s.reason} />
          <Fact label={t("labels")} value={s.labels && Object.entries(s.labels).map(([k, v]) => <span key={k} class="label">{k}={v}</span>)} />
          <Fact label={t("environment")} value={s.env && <code class="wrap">{s.env.join("\n")}</code>} />
        </dl>
        {(s.mounts?.length ?? 0) > 0 && <h2>{t("mounts")}</h2>}
        {(s.mounts?.length ?? 0) > 0 && (
          <Table
            caption={t("mounts")}
            rows={s.mounts!}
            id={(m) => m.target}
            empty=""
            columns={[
              { label: t("source"), wide: true, cell: (m) => m.source },
              { label: t("target"), wide: true, cell: (m) => m.target },
              { label: t("access"), cell: (m) => (m.read_only ? t("readOnly") : t("readWrite")) },
            ]}
          />
        )}
        {(s.volumes?.length ?? 0) > 0 && <h2>{t("volumes")}</h2>}
        {(s.volumes?.length ?? 0) > 0 && (
          <Table
            caption={t("volumes")}
            rows={s.volumes!}
            id={(v) => v.target}
            empty=""
            columns={[
              { label: t("name"), wide: true, cell: (v) => v.name },
              { label: t("target"), wide: true, cell: (v) => v.target },
              { label: t("access"), cell: (v) => (v.read_only ? t("readOnly") : t("readWrite")) },
            ]}
          />
        )}
      </section>
    </div>
  );
}

const live = new Set(["starting", "running", "ready", "unready", "stopping", "restarting"]);

/** A name for a terminal that no other has. */
const terminalName = (): string => `terminal-${Array.from(crypto.getRandomValues(new Uint8Array(3)), (b) => b.toString(16).padStart(2, "0")).join("")}`;

function Processes(p: { session: Session; events: BoxEvent[]; epoch: number }) {
  const s = p.session;
  const path = `${sessionPath(s)}/processes`;
  const loaded = useLoad((signal) => get<{ processes: Process[] }>(path, { tenant: s.tenant, signal }), [s.tenant, s.id], 5000);
  useEvents(p.events, p.epoch, (e) => e.process !== undefined, loaded.reload);
  const [starting, setStarting] = useState(false);
  const [asking, setAsking] = useState<{ of: Process; what: "stop" | "remove" } | null>(null);
  const open = (id: string) => (location.hash = sessionHref(s, "processes", id));
  const start = async (body: Record<string, unknown>) => {
    const made = await get<Process>(path, { method: "POST", tenant: s.tenant, body });
    open(made.id);
  };
  return (
    <section aria-labelledby="processes-title">
      <div class="bar">
        <h2 id="processes-title">{t("tab.processes")}</h2>
        {mayChange() && (
          <>
            <button
              type="button"
              class="primary"
              onClick={() => act(() => start({ id: terminalName(), shell: "command -v bash >/dev/null 2>&1 && exec bash; exec sh", env: { TERM: "xterm-256color" }, tty: { rows: 24, cols: 80 } }))}
            >
              {t("newTerminal")}
            </button>
            <button type="button" onClick={() => setStarting(true)}>{t("startProcess")}</button>
          </>
        )}
      </div>
      <Loading of={loaded} />
      {loaded.data && (
        <Table
          caption={t("tab.processes")}
          rows={loaded.data.processes}
          id={(one) => one.id}
          empty={t("noProcesses")}
          columns={[
            { label: t("process"), wide: true, cell: (one) => <a href={sessionHref(s, "processes", one.id)}>{one.id}</a> },
            { label: t("state"), cell: (one) => <><State state={one.state} /> <Verdict of={one} /></> },
            { label: t("command"), wide: true, cell: (one) => <code class="wrap">{one.argv.join(" ")}</code> },
            { label: t("kind"), cell: (one) => (one.tty ? t("terminal") : t("output")) },
            { label: t("started"), cell: (one) => time(one.started_at) },
            {
              label: t("actions"),
              hidden: true,
              cell: (one) =>
                mayChange() && (
                  <span class="actions">
                    {live.has(one.state) && <button type="button" aria-label={t("stopProcess", { id: one.id })} onClick={() => setAsking({ of: one, what: "stop" })}>{t("stop")}</button>}
                    <button type="button" aria-label={t("removeProcess", { id: one.id })} onClick={() => setAsking({ of: one, what: "remove" })}>{t("remove")}</button>
                  </span>
                ),
            },
          ]}
        />
      )}
      {starting && (
        <FormDialog
          title={t("startProcess")}
          submit={t("start")}
          onClose={() => setStarting(false)}
          action={(value) => start({ id: value("id"), shell: value("shell"), ...(value("kind") === "terminal" ? { tty: { rows: 24, cols: 80 }, env: { TERM: "xterm-256color" } } : { drop_oldest: true }) })}
        >
          <Field label={t("id")} name="id" required autofocus />
          <Field label={t("command")} name="shell" required hint={t("commandHint")} />
          <p class="field">
            <label for="field-kind">{t("kind")}</label>
            <select id="field-kind" name="kind">
              <option value="output">{t("output")}</option>
              <option value="terminal">{t("terminal")}</option>
            </select>
          </p>
        </FormDialog>
      )}
      {asking && (
        <Confirm
          title={asking.what === "stop" ? t("stopProcess", { id: asking.of.id }) : t("removeProcess", { id: asking.of.id })}
          text={asking.what === "stop" ? t("stopProcessText") : t("removeProcessText")}
          yes={asking.what === "stop" ? t("stop") : t("remove")}
          onClose={() => setAsking(null)}
          action={async () => {
            const one = processPath(s, asking.of.id);
            await (asking.what === "stop" ? request(`${one}/stop`, { method: "POST", tenant: s.tenant }) : request(one, { method: "DELETE", tenant: s.tenant }));
            loaded.reload();
          }}
        />
      )}
    </section>
  );
}

function Ports(p: { session: Session }) {
  const s = p.session;
  const loaded = useLoad((signal) => get<PortList>(`${sessionPath(s)}/ports`, { tenant: s.tenant, signal }), [s.tenant, s.id], 3000);
  const status = useLoad((signal) => get<Status>("/v1/status", { tenant: s.tenant, signal }), [s.tenant]);
  const mayLink = mayChange() && status.data?.previews === true;
  const [links, setLinks] = useState<Record<number, Link>>({});
  const make = async (port: number) => {
    try {
      const link = await get<Link>(`${sessionPath(s)}/links`, { method: "POST", tenant: s.tenant, body: { port } });
      if (!/^https?:$/.test(new URL(link.url).protocol)) throw new Error(link.url);
      setLinks((old) => ({ ...old, [port]: link }));
    } catch (e) {
      say(explain(e), true);
    }
  };
  return (
    <section aria-labelledby="ports-title">
      <div class="bar">
        <h2 id="ports-title">{t("tab.ports")}</h2>
        {mayLink && ( // also links that were made elsewhere, or before the page was loaded
          <button type="button" onClick={() => act(() => request(`${sessionPath(s)}/links`, { method: "DELETE", tenant: s.tenant }).then(() => setLinks({})), t("linksRevoked"))}>{t("revokeLinks")}</button>
        )}
      </div>
      <Loading of={loaded} />
      {status.error !== undefined && <Loading of={status} />}
      {mayChange() && status.data && !mayLink && <p>{t("noPreviews", { command: `boxd forward ${s.id} PORT` })}</p>}
      {loaded.data && (
        <Table
          caption={t("tab.ports")}
          rows={loaded.data.ports}
          id={(one) => `${one.protocol}/${one.address}/${one.port}`}
          empty={t("noPorts")}
          columns={[
            { label: t("port"), cell: (one) => String(one.port) },
            { label: t("protocol"), cell: (one) => one.protocol },
            { label: t("address"), cell: (one) => one.address },
            ...(mayLink
              ? [
                  {
                    label: t("preview"),
                    wide: true,
                    cell: (one: Port) =>
                      one.protocol.startsWith("tcp") &&
                      (links[one.port] ? (
                        <a href={links[one.port]!.url} target="_blank" rel="noopener noreferrer">{t("openPreview", { until: clock(links[one.port]!.expires_at) })}</a>
                      ) : (
                        <button type="button" aria-label={t("makeLinkTo", { port: String(one.port) })} onClick={() => make(one.port)}>{t("makeLink")}</button>
                      )),
                  },
                ]
              : []),
          ]}
        />
      )}
      {loaded.data && loaded.data.published.length > 0 && (
        <>
          <h2>{t("published")}</h2>
          <Table
            caption={t("published")}
            rows={loaded.data.published}
            id={(one) => one.host}
            empty=""
            columns={[
              { label: t("port"), cell: (one) => String(one.port) },
              { label: t("address"), wide: true, cell: (one) => `${one.address}:${one.host}` },
              { label: t("connections"), cell: (one) => number(one.connections) },
              { label: t("reason"), wide: true, cell: (one) => one.reason ?? "" },
            ]}
          />
        </>
      )}
    </section>
  );
}

function NetworkView(p: { session: Session }) {
  const s = p.session;
  const loaded = useLoad((signal) => get<Network>(`${sessionPath(s)}/network`, { tenant: s.tenant, signal }), [s.tenant, s.id], 2000);
  const n = loaded.data;
  const connections = (title: Key, rows: Connection[], empty: Key) => (
    <>
      <h2>{t(title)}</h2>
      <Table
        caption={t(title)}
        rows={rows}
        id={(c) => `${c.start} ${c.name ?? ""} ${c.address ?? ""} ${c.port}`}
        empty={t(empty)}
        columns={[
          { label: t("begun"), cell: (c) => clock(c.start) },
          { label: t("destination"), wide: true, cell: (c) => <>{c.name || c.address}{c.name ? `:${c.port}` : ""}{c.name && c.address && <div class="dim">{c.address}</div>}</> },
          { label: t("decision"), cell: (c) => <Badge kind={c.allowed ? "good" : "bad"}>{c.allowed ? t("allowed") : t("denied")}</Badge> },
          { label: t("rule"), wide: true, cell: (c) => <>{c.rule}{c.reason && <div class="dim">{c.reason}</div>}</> },
          { label: t("traffic"), cell: (c) => `↓ ${bytes(c.in)} ↑ ${bytes(c.out)}` },
          { label: t("duration"), cell: (c) => took(c.duration) },
        ]}
      />
    </>
  );
  return (
    <section aria-label={t("tab.network")}>
      <Loading of={loaded} />
      {n && (
        <>
          <p>{n.on ? t("networkOn") : s.network_off ? `${t("networkOff")} ${s.network_off}` : t("networkOff")}</p>
          {s.network_rules && <p class="dim">{t("narrowed")}: <code>{JSON.stringify(s.network_rules)}</code></p>}
          {connections("openConnections", n.live, "noConnections")}
          <h2>{t("refusals")}</h2>
          <Table
            caption={t("refusals")}
            rows={n.denied}
            id={(d) => `${d.what} ${d.rule}`}
            empty={t("noRefusals")}
            columns={[
              { label: t("destination"), wide: true, cell: (d) => d.what },
              { label: t("rule"), wide: true, cell: (d) => d.rule },
              { label: t("count"), cell: (d) => number(d.count) },
            ]}
          />
          {connections("lastConnections", n.recent, "noConnections")}
        </>
      )}
    </section>
  );
}

