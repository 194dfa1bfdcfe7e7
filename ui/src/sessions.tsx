// The list of sessions.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, listTenant, login, mayChange, request, sessionPath, type BoxEvent, type Profile, type Session } from "./api";
import { ago, bytes, length, limit, number } from "./format";
import { t } from "./i18n";
import { act, Badge, Confirm, Field, FormDialog, Loading, State, Table, useLoad, useNow, type Column } from "./parts";

const pageSize = 50; // sessions on a page: what a browser draws without delay
const soon = 60; // seconds; a session that ends sooner is marked

export const sessionHref = (s: { tenant: string; id: string }, ...more: string[]): string => `#/${["s", s.tenant, s.id, ...more].map(encodeURIComponent).join("/")}`;

/** The state to show: that of a paused session is "running" in the API. */
export const shownState = (s: Session): string => (s.paused_at ? "paused" : s.state);

/** When a session ends if nothing uses it. While it is paused only its lifetime counts, and the daemon tells that time. */
export function Countdown(p: { of: Session }) {
  const now = useNow();
  const until = p.of.expires_at;
  if (!until) return <span class="dim">{p.of.paused_at ? t("notWhilePaused") : t("never")}</span>;
  const left = (Date.parse(until) - now) / 1000;
  return (
    <time dateTime={until} class={left < soon ? "soon" : ""} title={until}>
      {left < soon && <span class="unseen">{t("endsSoon")} </span>}
      {length(left)}
    </time>
  );
}

function Created(p: { at: string }) {
  return <time dateTime={p.at} title={p.at}>{ago(p.at, useNow())}</time>;
}

export function StopSession(p: { session: Session; onClose(): void; onStopped?(): void }) {
  const { session: s } = p;
  const kept = s.retain && s.retain !== "none" ? ` ${t("stopRetained")}` : "";
  return (
    <Confirm
      title={t("stopTitle", { id: s.id })}
      text={t("stopText", { processes: s.processes, execs: s.execs }) + kept}
      yes={t("stop")}
      done={t("stopped", { id: s.id })}
      onClose={p.onClose}
      action={async () => {
        await request(sessionPath(s), { method: "DELETE", tenant: s.tenant });
        p.onStopped?.();
      }}
    />
  );
}

export function PauseSession(p: { session: Session; onClose(): void; onPaused(): void }) {
  const { session: s } = p;
  return (
    <Confirm
      title={t("pauseTitle", { id: s.id })}
      text={t("pauseText", { processes: s.processes, execs: s.execs }) + (s.auto_resume ? ` ${t("autoResume")}` : "")}
      yes={t("pause")}
      mild
      done={t("paused", { id: s.id })}
      onClose={p.onClose}
      action={async () => {
        await request(`${sessionPath(s)}/pause`, { method: "POST", tenant: s.tenant });
        p.onPaused();
      }}
    />
  );
}

/** Asks to pause a running session, or resumes a paused one. It is one button, which keeps the focus when it changes. */
export function PauseButton(p: { session: Session; labelled?: boolean; ask(): void; onResumed(): void }) {
  const { session: s } = p;
  if (s.state !== "running") return null;
  const resume = () => act(() => request(`${sessionPath(s)}/resume`, { method: "POST", tenant: s.tenant }).then(p.onResumed), t("resumed", { id: s.id }));
  const label = p.labelled ? t(s.paused_at ? "resumeTitle" : "pauseTitle", { id: s.id }) : undefined;
  return <button type="button" aria-label={label} onClick={s.paused_at ? resume : p.ask}>{s.paused_at ? t("resume") : t("pause")}</button>;
}

function Create(p: { onClose(): void; onCreated(s: Session): void }) {
  const profiles = useLoad((signal) => get<{ profiles: Profile[] }>("/v1/profiles", { signal }), []);
  return (
    <FormDialog
      title={t("createTitle")}
      submit={t("create")}
      onClose={p.onClose}
      action={async (value) => {
        const body: Record<string, unknown> = { id: value("id") };
        for (const name of ["name", "profile", "image", "memory", "idle_ttl", "max_lifetime"]) if (value(name)) body[name] = value(name);
        if (value("cpus")) body.cpus = Number(value("cpus"));
        if (value("pids")) body.pids = Number(value("pids"));
        if (value("network")) body.network = value("network") === "on";
        p.onCreated(await get<Session>("/v1/sessions", { method: "POST", body, tenant: value("tenant") }));
      }}
    >
      <Field label={t("id")} name="id" required autofocus hint={t("idHint")} />
      {login?.all_tenants && <Field label={t("tenant")} name="tenant" value={login.tenant === "*" ? "default" : login.tenant} required />}
      <Field label={t("name")} name="name" />
      <p class="field">
        <label for="field-profile">{t("profile")}</label>
        <select id="field-profile" name="profile">
          <option value="">{t("default")}</option>
          {profiles.data?.profiles.map((one) => <option key={one.name} value={one.name}>{one.name}</option>)}
        </select>
      </p>
      <Field label={t("image")} name="image" placeholder="host" hint={t("imageHint")} />
      <fieldset>
        <legend>{t("limits")}</legend>
        <Field label={t("cpus")} name="cpus" type="number" />
        <Field label={t("memory")} name="memory" placeholder="512M" />
        <Field label={t("pids")} name="pids" type="number" />
        <Field label={t("idleTTL")} name="idle_ttl" placeholder="30m" />
        <Field label={t("maxLifetime")} name="max_lifetime" placeholder="8h" />
      </fieldset>
      <p class="field">
        <label for="field-network">{t("network")}</label>
        <select id="field-network" name="network">
          <option value="">{t("default")}</option>
          <option value="off">{t("off")}</option>
          <option value="on">{t("on")}</option>
        </select>
      </p>
    </FormDialog>
  );
}

const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0);

const orders: Record<"newest" | "ending" | "id", (a: Session, b: Session) => number> = {
  newest: (a, b) => compare(b.created_at, a.created_at),
  ending: (a, b) => compare(a.expires_at ?? "~", b.expires_at ?? "~"),
  id: (a, b) => compare(a.id, b.id) || compare(a.tenant, b.tenant),
};

const listReload = 1000; // ms between two loads of the list, whatever happens meanwhile
const unheard = new Set(["network-connection", "port-opened", "port-closed", "image-progress"]); // events that change nothing in the list

/** Calls reload when there was an event that matters, or events were missed, but not too often. */
export function useEvents(events: BoxEvent[], epoch: number, matters: (e: BoxEvent) => boolean, reload: () => void): void {
  const newest = events.find(matters)?.id ?? 0;
  const timer = useRef(0);
  useEffect(() => {
    if (newest === 0 && epoch < 2) return;
    timer.current ||= setTimeout(() => {
      timer.current = 0;
      reload();
    }, listReload);
  }, [newest, epoch]);
  useEffect(() => () => clearTimeout(timer.current), []);
}

export function Sessions(p: { events: BoxEvent[]; epoch: number }) {
  const loaded = useLoad((signal) => get<{ sessions: Session[] }>("/v1/sessions", { tenant: listTenant(), signal }), [listTenant()], 10_000);
  const [filter, setFilter] = useState("");
  const [order, setOrder] = useState<keyof typeof orders>("newest");
  const [page, setPage] = useState(0);
  const [creating, setCreating] = useState(false);
  const [asking, setAsking] = useState<{ of: Session; what: "pause" | "stop" } | null>(null);
  useEvents(p.events, p.epoch, (e) => !unheard.has(e.type), loaded.reload);
  const all = loaded.data?.sessions ?? [];
  const found = useMemo(() => {
    const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (s: Session) =>
      [s.id, s.name, s.tenant, shownState(s), s.profile, s.image, ...Object.entries(s.labels ?? {}).map(([k, v]) => `${k}=${v}`)].join(" ").toLowerCase();
    return all.filter((s) => words.length === 0 || words.every((w) => text(s).includes(w))).sort(orders[order]);
  }, [all, filter, order]);
  const pages = Math.max(1, Math.ceil(found.length / pageSize));
  const at = Math.min(page, pages - 1);
  const rows = found.slice(at * pageSize, (at + 1) * pageSize);

  const columns: Column<Session>[] = [
    {
      label: t("session"),
      wide: true,
      cell: (s) => (
        <>
          <a href={sessionHref(s)}>{s.id}</a>
          {s.name && <div class="dim">{s.name}</div>}
          {s.labels && <div class="labels">{Object.entries(s.labels).map(([k, v]) => <span key={k} class="label">{k}={v}</span>)}</div>}
        </>
      ),
    },
    { label: t("state"), cell: (s) => <><State state={shownState(s)} /> {s.sensitive && <Badge kind="warn">{t("sensitive")}</Badge>}</> },
    { label: t("image"), wide: true, cell: (s) => s.image ?? "" },
    { label: t("limits"), cell: (s) => <>{limit(s.cpus, (n) => `${number(n, 2)}\u00a0CPU`)} · {limit(s.memory, bytes)}<div class="dim">{limit(s.pids, (n) => `${number(n)}\u00a0PID`)}</div></> },
    { label: t("network"), cell: (s) => (s.network ? (s.network_off ? t("offNow") : t("on")) : t("off")) },
    { label: t("running"), cell: (s) => t("runs", { processes: s.processes, execs: s.execs }) },
    { label: t("created"), cell: (s) => <Created at={s.created_at} /> },
    { label: t("endsIn"), cell: (s) => <Countdown of={s} /> },
  ];
  if (login?.all_tenants) columns.splice(1, 0, { label: t("tenant"), cell: (s) => s.tenant });
  if (mayChange()) {
    columns.push({
      label: t("actions"),
      hidden: true,
      cell: (s) => (
        <span class="actions">
          <PauseButton session={s} labelled ask={() => setAsking({ of: s, what: "pause" })} onResumed={loaded.reload} />
          <button type="button" onClick={() => setAsking({ of: s, what: "stop" })} aria-label={t("stopTitle", { id: s.id })}>{t("stop")}</button>
        </span>
      ),
    });
  }
  return (
    <>
      <h1>{t("nav.sessions")} <small class="dim">{loaded.data ? number(found.length) : ""}</small></h1>
      <div class="bar">
        <input type="search" aria-label={t("filter")} placeholder={t("filter")} value={filter} onInput={(e) => (setFilter(e.currentTarget.value), setPage(0))} />
        <label class="inline">
          {t("sort")}{" "}
          <select value={order} onChange={(e) => setOrder(e.currentTarget.value as keyof typeof orders)}>
            {(["newest", "ending", "id"] as const).map((o) => <option key={o} value={o}>{t(`sort.${o}`)}</option>)}
          </select>
        </label>
        {mayChange() && <button type="button" class="primary" onClick={() => setCreating(true)}>{t("createSession")}</button>}
      </div>
      <Loading of={loaded} />
      {loaded.data && <Table caption={t("nav.sessions")} rows={rows} columns={columns} id={(s) => `${s.tenant}/${s.id}`} empty={filter ? t("noneFound") : t("noSessions")} />}
      {pages > 1 && (
        <nav class="bar" aria-label={t("pages")}>
          <button type="button" disabled={at === 0} onClick={() => setPage(at - 1)}>{t("previous")}</button>
          <span role="status">{t("range", { from: number(at * pageSize + 1), to: number(at * pageSize + rows.length), all: number(found.length) })}</span>
          <button type="button" disabled={at === pages - 1} onClick={() => setPage(at + 1)}>{t("next")}</button>
        </nav>
      )}
      {creating && <Create onClose={() => setCreating(false)} onCreated={(s) => (location.hash = sessionHref(s))} />}
      {asking?.what === "pause" && <PauseSession session={asking.of} onClose={() => setAsking(null)} onPaused={loaded.reload} />}
      {asking?.what === "stop" && <StopSession session={asking.of} onClose={() => setAsking(null)} onStopped={loaded.reload} />}
    </>
  );
}
