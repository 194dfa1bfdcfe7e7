// What happened, as it happens.
import { useState } from "preact/hooks";
import { login, type BoxEvent } from "./api";
import { time } from "./format";
import { t } from "./i18n";
import { Badge, Table } from "./parts";
import { sessionHref } from "./sessions";

const shown = 100;
const bad = new Set(["error", "oom", "pids-limit", "process-unready"]);

function Details(p: { of: BoxEvent }) {
  const d = p.of.details ?? {};
  const text = Object.entries(d).map(([k, v]) => `${k}=${typeof v === "string" ? v : JSON.stringify(v)}`).join(" ");
  return <code class="wrap">{text.length > 300 ? `${text.slice(0, 300)}…` : text}</code>;
}

export function EventList(p: { events: BoxEvent[]; inSession?: boolean }) {
  const [filter, setFilter] = useState("");
  const Title = p.inSession ? "h2" : "h1";
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = p.events.filter((e) => words.every((w) => `${e.type} ${e.tenant ?? ""} ${e.session ?? ""} ${e.process ?? ""}`.toLowerCase().includes(w)));
  return (
    <>
      <Title>{t("nav.events")} <small class="dim">{t("since")}</small></Title>
      <div class="bar"><input type="search" aria-label={t("filter")} placeholder={t("filter")} value={filter} onInput={(e) => setFilter(e.currentTarget.value)} /></div>
      <Table
        caption={t("nav.events")}
        rows={found.slice(0, shown)}
        id={(e) => e.id}
        empty={t("noEvents")}
        columns={[
          { label: t("time"), cell: (e) => time(e.time) },
          { label: t("event"), cell: (e) => <Badge kind={bad.has(e.type) ? "bad" : "plain"}>{e.type}</Badge> },
          {
            label: t("session"),
            wide: true,
            cell: (e) => e.session && <><a href={sessionHref({ tenant: e.tenant ?? "", id: e.session })}>{e.session}</a>{login?.all_tenants && <span class="dim"> {e.tenant}</span>}{e.process && <div class="dim">{e.process}</div>}</>,
          },
          { label: t("details"), wide: true, cell: (e) => <Details of={e} /> },
        ]}
      />
    </>
  );
}
