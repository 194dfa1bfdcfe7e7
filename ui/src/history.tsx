// Commands and processes that have ended, of a session or of all.
import { useEffect, useState } from "preact/hooks";
import { get, listTenant, login, sessionPath, type ExecRecord, type Session } from "./api";
import { bytes, time, took } from "./format";
import { t, type Key } from "./i18n";
import { act, Loading, Table, useLoad, Verdict, type Column } from "./parts";
import { sessionHref } from "./sessions";

const verdicts = ["exited", "signaled", "timeout", "oom", "pids-limit", "disk-quota", "output-limit", "canceled", "box-lost"];
const pageSize = 50;

interface Page {
  execs: ExecRecord[];
  next?: number;
}

export function History(p: { session?: Session }) {
  const s = p.session;
  const Title = s ? "h2" : "h1";
  const path = s ? `${sessionPath(s)}/execs` : "/v1/execs";
  const tenant = s?.tenant ?? listTenant();
  const [verdict, setVerdict] = useState("");
  const query = (before?: number) => `${path}?${new URLSearchParams({ limit: String(pageSize), ...(verdict ? { verdict } : {}), ...(before ? { before: String(before) } : {}) })}`;
  const loaded = useLoad((signal) => get<Page>(query(), { tenant, signal }), [path, tenant, verdict]);
  const [older, setOlder] = useState<Page | null>(null);
  useEffect(() => setOlder(null), [loaded.data]);
  const rows = [...(loaded.data?.execs ?? []), ...(older?.execs ?? [])];
  const next = older ? older.next : loaded.data?.next;
  const columns: Column<ExecRecord>[] = [
    { label: t("endedAt"), cell: (e) => time(e.ended_at) },
    { label: t("command"), wide: true, cell: (e) => <code class="wrap">{e.process ? `${e.process}: ` : ""}{e.argv?.join(" ") ?? ""}</code> },
    { label: t("verdict"), cell: (e) => <Verdict of={e} /> },
    { label: t("duration"), cell: (e) => took(e.receipt.wall) },
    { label: t("memoryPeak"), cell: (e) => (e.receipt.memory_peak !== undefined ? bytes(e.receipt.memory_peak) : "") },
    { label: t("caller"), wide: true, cell: (e) => e.actor ?? "" },
  ];
  if (!s) columns.splice(1, 0, { label: t("session"), wide: true, cell: (e) => <><a href={sessionHref({ tenant: e.tenant, id: e.session })}>{e.session}</a>{login?.all_tenants && <span class="dim"> {e.tenant}</span>}</> });
  return (
    <>
      <Title>{t("nav.history")}</Title>
      <div class="bar">
        <label class="inline">
          {t("verdict")}{" "}
          <select value={verdict} onChange={(e) => setVerdict(e.currentTarget.value)}>
            <option value="">{t("all")}</option>
            {verdicts.map((v) => <option key={v} value={v}>{t(`verdict.${v}` as Key)}</option>)}
          </select>
        </label>
        <button type="button" onClick={loaded.reload}>{t("reload")}</button>
      </div>
      <Loading of={loaded} />
      {loaded.data && <Table caption={t("nav.history")} rows={rows} columns={columns} id={(e) => `${e.tenant}/${e.id}`} empty={t("nothingEnded")} />}
      {next && (
        <button
          type="button"
          onClick={() =>
            act(async () => {
              const more = await get<Page>(query(next), { tenant });
              setOlder({ ...more, execs: [...(older?.execs ?? []), ...more.execs] });
            })
          }
        >
          {t("older")}
        </button>
      )}
    </>
  );
}
