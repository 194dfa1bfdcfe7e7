// Files in the box of a session: they are read and written there, as its user.
import { useRef, useState } from "preact/hooks";
import { download, get, mayChange, request, sessionPath, upload, type FileInfo, type Session } from "./api";
import { bytes, percent, time } from "./format";
import { t, type Key } from "./i18n";
import { Confirm, explain, Field, FormDialog, Loading, say, Table, useLoad } from "./parts";
import { sessionHref } from "./sessions";

/** The path of a file for a URL. Names are bytes, of which the API has a second form where they are not UTF-8. */
const encoded = (f: FileInfo): string => (f.path_base64 ? Array.from(atob(f.path_base64), (c) => `%${c.charCodeAt(0).toString(16).padStart(2, "0")}`).join("") : encodeURIComponent(f.path));

const join = (dir: string, name: string): string => (dir.endsWith("/") ? dir + name : `${dir}/${name}`);

interface Transfer {
  id: number;
  name: string;
  what: "upload" | "download";
  done: number;
  size: number;
  state: "running" | "done" | "failed";
  error?: string;
  stop: AbortController;
}
let transferID = 0;

export function Files(p: { session: Session; path: string }) {
  const s = p.session;
  const dir = p.path || (s.workspace_mode === "none" ? "/" : s.workspace_target);
  const base = `${sessionPath(s)}/files`;
  const loaded = useLoad((signal) => get<{ files: FileInfo[]; truncated?: boolean }>(`${base}?path=${encodeURIComponent(dir)}`, { tenant: s.tenant, signal }), [s.tenant, s.id, dir]);
  const [transfers, setTransfers] = useState<Transfer[]>([]);
  const [removing, setRemoving] = useState<FileInfo | null>(null);
  const [making, setMaking] = useState(false);
  const input = useRef<HTMLInputElement>(null);

  const transfer = async (what: Transfer["what"], name: string, size: number, run: (progress: (n: number) => void, signal: AbortSignal) => Promise<void>) => {
    const one: Transfer = { id: ++transferID, name, what, done: 0, size, state: "running", stop: new AbortController() };
    const set = (change: Partial<Transfer>) => setTransfers((list) => list.map((o) => (o.id === one.id ? { ...o, ...change } : o)));
    setTransfers((list) => [...list.filter((o) => o.state === "running"), one]);
    try {
      await run((done) => set({ done }), one.stop.signal);
      set({ state: "done", done: size });
      say(t("transferred", { name }));
    } catch (e) {
      set({ state: "failed", error: explain(e) });
      say(`${name}: ${explain(e)}`, true);
    }
  };
  // One after the other: several at once are not faster, and count as many requests.
  const send = async (files: File[]) => {
    for (const f of files) {
      await transfer("upload", f.name, f.size, (progress, signal) => upload(`${base}/content?path=${encodeURIComponent(join(dir, f.name))}`, s.tenant, f, progress, signal));
    }
    loaded.reload();
  };

  const href = (path: string) => sessionHref(s, "files", path);
  const parts = dir.split("/").filter(Boolean);
  return (
    <section
      aria-labelledby="files-title"
      onDragOver={(e) => mayChange() && e.preventDefault()}
      onDrop={(e) => {
        if (!mayChange()) return;
        e.preventDefault();
        void send([...(e.dataTransfer?.files ?? [])]);
      }}
    >
      <h2 id="files-title" class="unseen">{t("tab.files")}</h2>
      <div class="bar">
        <nav aria-label={t("path")} class="path">
          <a href={href("/")}>/</a>
          {parts.map((name, i) => <span key={i}> <a href={href(`/${parts.slice(0, i + 1).join("/")}`)}>{name}</a> {i < parts.length - 1 && "/"}</span>)}
        </nav>
        <button type="button" onClick={loaded.reload}>{t("reload")}</button>
        {mayChange() && (
          <>
            <button type="button" class="primary" onClick={() => input.current?.click()}>{t("upload")}</button>
            <input
              ref={input}
              type="file"
              multiple
              hidden
              aria-label={t("upload")}
              onChange={(e) => {
                const files = [...(e.currentTarget.files ?? [])];
                e.currentTarget.value = "";
                void send(files);
              }}
            />
            <button type="button" onClick={() => setMaking(true)}>{t("makeDirectory")}</button>
          </>
        )}
      </div>
      <div>
        {transfers.map((one) => (
          <p key={one.id} class="transfer">
            {t(`${one.what}Of` as Key, { name: one.name })}{" "}
            {one.state === "running" ? (
              <>
                <progress aria-label={one.name} max={Math.max(1, one.size)} value={one.done} /> {percent(one.size > 0 ? one.done / one.size : 0)}{" "}
                <button type="button" onClick={() => one.stop.abort()}>{t("cancel")}</button>
              </>
            ) : one.state === "done" ? (
              `${t("done")} (${bytes(one.size)})`
            ) : (
              <span class="error">{one.error}</span>
            )}
          </p>
        ))}
      </div>
      <Loading of={loaded} />
      {loaded.data?.truncated && <p class="error">{t("moreFiles")}</p>}
      {loaded.data && (
        <Table
          caption={t("tab.files")}
          rows={[...loaded.data.files].sort((a, b) => Number(b.type === "dir") - Number(a.type === "dir") || a.name.localeCompare(b.name))}
          id={(f) => f.path_base64 ?? f.path}
          empty={t("noFiles")}
          columns={[
            {
              label: t("name"),
              wide: true,
              cell: (f) => <>{f.type === "dir" && !f.path_base64 ? <a href={href(f.path)}>{f.name}/</a> : <span class="prewrap">{f.name}</span>}{f.target && <span class="dim"> → {f.target}</span>}</>,
            },
            { label: t("size"), cell: (f) => (f.type === "file" ? bytes(f.size) : t(`file.${f.type}` as Key)) },
            { label: t("changed"), cell: (f) => time(f.mod_time) },
            { label: t("access"), cell: (f) => <code>{f.mode} {f.uid}:{f.gid}</code> },
            {
              label: t("actions"),
              hidden: true,
              cell: (f) => (
                <span class="actions">
                  {f.type === "file" && (
                    <button
                      type="button"
                      aria-label={t("downloadOf", { name: f.name })}
                      onClick={() => transfer("download", f.name, f.size, (progress, signal) => download(`${base}/content?path=${encoded(f)}`, s.tenant, f.name, progress, signal))}
                    >
                      {t("download")}
                    </button>
                  )}
                  {mayChange() && <button type="button" aria-label={t("removeOf", { name: f.name })} onClick={() => setRemoving(f)}>{t("remove")}</button>}
                </span>
              ),
            },
          ]}
        />
      )}
      {removing && (
        <Confirm
          title={t("removeOf", { name: removing.name })}
          text={t(removing.type === "dir" ? "removeDirText" : "removeFileText", { path: removing.path })}
          yes={t("remove")}
          onClose={() => setRemoving(null)}
          action={async () => {
            await request(`${base}/content?path=${encoded(removing)}${removing.type === "dir" ? "&recursive=1" : ""}`, { method: "DELETE", tenant: s.tenant });
            loaded.reload();
          }}
        />
      )}
      {making && (
        <FormDialog
          title={t("makeDirectory")}
          submit={t("create")}
          onClose={() => setMaking(false)}
          action={async (value) => {
            await request(`${base}/mkdir`, { method: "POST", tenant: s.tenant, body: { path: join(dir, value("name")) } });
            loaded.reload();
          }}
        >
          <Field label={t("name")} name="name" required autofocus />
        </FormDialog>
      )}
    </section>
  );
}
