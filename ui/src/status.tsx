// Whether the service can serve, what it holds, and what went wrong.
import { get, listTenant, mayChange, seesAll, type Doctor, type ErrorRecord, type Status } from "./api";
import { bytes, clock, length, number, time } from "./format";
import { t, type Key } from "./i18n";
import { Badge, Loading, Meter, Table, useLoad } from "./parts";
import { sessionHref } from "./sessions";

function Part(p: { name: string; ok: boolean; reason?: string | undefined; text?: string }) {
  return (
    <li>
      <strong>{p.name}</strong> <Badge kind={p.ok ? "good" : "bad"}>{p.ok ? t("works") : t("fails")}</Badge> {p.text && <span class="dim">{p.text}</span>}
      {p.reason && <p class="error">{p.reason}</p>}
    </li>
  );
}

const outcomes = { ok: "good", unknown: "plain", degraded: "warn", failed: "bad", absent: "plain" } as const;

/** What the daemon can check of its host. A check can make it build a box, so it is made when the view is opened, or on request. */
function DoctorView() {
  const loaded = useLoad((signal) => get<Doctor>("/v1/doctor", { signal }), []);
  const d = loaded.data;
  return (
    <section aria-labelledby="doctor-title">
      <div class="bar">
        <h2 id="doctor-title">{t("doctor")}</h2>
        <span role="status" class="dim">{d && t("checkedAt", { time: clock(d.at) })}</span>
        <button type="button" onClick={loaded.reload}>{t("checkAgain")}</button>
      </div>
      <Loading of={loaded} />
      {d && (
        <>
          <Table
            caption={t("doctor")}
            rows={d.checks}
            id={(c) => c.name}
            empty=""
            columns={[
              { label: t("check"), cell: (c) => c.name },
              { label: t("outcome"), cell: (c) => <Badge kind={outcomes[c.status]}>{t(`check.${c.status}`)}</Badge> },
              { label: t("details"), wide: true, cell: (c) => <>{c.detail}{c.mend && <div class="dim">{t("toDo", { what: c.mend })}</div>}</> },
            ]}
          />
          <p class="dim">{t("onHost", { names: d.on_host.join(", ") })}</p>
        </>
      )}
    </section>
  );
}

const ofBytes = new Set(["memory", "workspace_bytes", "volume_bytes"]);

export function StatusView() {
  const loaded = useLoad((signal) => get<Status>("/v1/status", { tenant: listTenant(), signal }), [listTenant()], 5000);
  const errors = useLoad((signal) => get<{ errors: ErrorRecord[] }>("/v1/errors", { tenant: listTenant(), signal }), [listTenant()], 5000);
  const s = loaded.data;
  return (
    <>
      <h1>{t("nav.status")}</h1>
      <Loading of={loaded} />
      {s && (
        <>
          <ul class="parts">
            <Part name={t("daemon")} ok={s.available} reason={s.available || !s.engine.ok ? undefined : s.reason} text={`${s.version} · ${t("uptime", { time: length(s.uptime) })}`} />
            <Part name={t("engine")} ok={s.engine.ok} reason={s.engine.reason} />
            {s.langbot ? <Part name={t("connector")} ok={s.langbot.ok} reason={s.langbot.reason} /> : <li><strong>{t("connector")}</strong> <span class="dim">{t("notConfigured")}</span></li>}
            {s.audit && <Part name={t("auditLog")} ok={s.audit.ok} reason={s.audit.reason} text={t("entries", { n: s.audit.seq })} />}
          </ul>
          <p>
            {Object.entries(s.sessions).map(([state, n]) => <span key={state} class="label">{t(`state.${state}` as Key)}: {number(n)}</span>)}
            <span class="label">{t("tab.processes")}: {number(s.processes)}</span>
            <span class="label">{t("execs")}: {number(s.execs)}</span>
          </p>
          {(s.warnings?.length ?? 0) > 0 && (
            <section aria-labelledby="warnings-title">
              <h2 id="warnings-title">{t("warnings")}</h2>
              <ul>{s.warnings!.map((w) => <li key={w}>{w}</li>)}</ul>
            </section>
          )}
          {(s.webhooks?.length ?? 0) > 0 && (
            <section aria-labelledby="webhooks-title">
              <h2 id="webhooks-title">{t("webhooks")}</h2>
              <Table
                caption={t("webhooks")}
                rows={s.webhooks!}
                id={(w) => w.name}
                empty=""
                columns={[
                  { label: t("receiver"), wide: true, cell: (w) => <>{w.name}<div class="dim">{w.host}</div></> },
                  { label: t("state"), wide: true, cell: (w) => (w.error ? <><Badge kind="bad">{t("fails")}</Badge><div class="error">{t("lastAttempt", { why: w.error })}</div></> : w.delivered > 0 ? <Badge kind="good">{t("works")}</Badge> : <Badge kind="plain">{t("unknown")}</Badge>) },
                  { label: t("delivered"), cell: (w) => number(w.delivered) },
                  { label: t("pending"), cell: (w) => <>{number(w.pending)}{w.oldest && <div class="dim">{t("oldest", { time: time(w.oldest) })}</div>}</> },
                  { label: t("attemptsFailed"), cell: (w) => number(w.failed) },
                  { label: t("dropped"), cell: (w) => number(w.dropped) },
                ]}
              />
            </section>
          )}
          <section aria-labelledby="quota-title">
            <h2 id="quota-title">{t("quotas")}</h2>
            <div class="meters">{s.quota?.map((q) => <Meter key={q.name} label={t(`quota.${q.name}` as Key)} used={q.in_use} limit={q.limit} format={ofBytes.has(q.name) ? bytes : (n) => number(n, 2)} />)}</div>
          </section>
        </>
      )}
      <section aria-labelledby="errors-title">
        <h2 id="errors-title">{t("lastErrors")}</h2>
        <Loading of={errors} />
        {errors.data && (
          <Table
            caption={t("lastErrors")}
            rows={errors.data.errors.map((e, i) => ({ ...e, i }))}
            id={(e) => e.i}
            empty={t("noErrors")}
            columns={[
              { label: t("time"), cell: (e) => time(e.time) },
              { label: t("session"), wide: true, cell: (e) => e.session && <><a href={sessionHref({ tenant: e.tenant ?? "", id: e.session })}>{e.session}</a>{e.process && <div class="dim">{e.process}</div>}</> },
              { label: t("message"), wide: true, cell: (e) => e.message },
            ]}
          />
        )}
      </section>
      {mayChange() && seesAll() && <DoctorView />}
    </>
  );
}
