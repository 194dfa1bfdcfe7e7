// The page: who is signed in, where one is, and the views.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { follow, login, onLogin, renew, signIn, signOut, type BoxEvent } from "./api";
import { EventList } from "./events";
import { History } from "./history";
import { choose, language, languages, onLanguage, t, type Language } from "./i18n";
import { act, Dialog, explain, Field, Messages } from "./parts";
import { SessionView } from "./session";
import { Sessions } from "./sessions";
import { StatusView } from "./status";
import "./sheet";

const renewEvery = 5 * 60_000; // ms; a login lasts 30 minutes unless it is renewed
const keptEvents = 1000;

/** The parts of the address behind "#/"; none, if it is not one of this page's. */
function parts(): string[] {
  try {
    return location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return [];
  }
}

function useRoute(): string[] {
  const [route, setRoute] = useState(parts);
  useEffect(() => {
    const f = () => setRoute(parts());
    addEventListener("hashchange", f);
    return () => removeEventListener("hashchange", f);
  }, []);
  return route;
}

type Theme = "auto" | "light" | "dark";
const themeKey = "boxd-theme";

function applyTheme(theme: Theme): void {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

function SignIn() {
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  return (
    <Dialog title={t("signIn")} onClose={() => undefined} fixed>
      <form
        onSubmit={async (e) => {
          e.preventDefault();
          const form = e.currentTarget;
          setBusy(true);
          setError("");
          try {
            await signIn(String(new FormData(form).get("token")).trim());
          } catch (cause) {
            setError(cause instanceof Error && "code" in cause && cause.code === "unauthenticated" ? cause.message : explain(cause));
            setBusy(false);
          }
        }}
      >
        <p>{t("signInText")}</p>
        <Field label={t("token")} name="token" type="password" required autofocus />
        <p role="alert" class="error">{error}</p>
        <div class="actions"><button type="submit" class="primary" disabled={busy}>{t("signIn")}</button></div>
      </form>
    </Dialog>
  );
}

function App() {
  const route = useRoute();
  const [, redraw] = useState(0);
  const [known, setKnown] = useState(false);
  const [theme, setTheme] = useState<Theme>((localStorage.getItem(themeKey) as Theme | null) ?? "auto");
  const [events, setEvents] = useState<BoxEvent[]>([]);
  const [epoch, setEpoch] = useState(0);
  const main = useRef<HTMLElement>(null);
  useEffect(() => {
    const stops = [onLogin(() => redraw((n) => n + 1)), onLanguage(() => redraw((n) => n + 1))];
    const check = () => renew().then(() => setKnown(true), () => setTimeout(check, 2000));
    void check();
    const timer = setInterval(() => login && void renew().catch(() => undefined), renewEvery);
    const stream = new AbortController();
    // Events come in bursts: the page is drawn once for each.
    let fresh: BoxEvent[] = [];
    let drawing = 0;
    const draw = () => {
      drawing = 0;
      const now = fresh.reverse();
      fresh = [];
      setEvents((old) => [...now, ...old].slice(0, keptEvents));
    };
    void follow(
      (e) => {
        fresh.push(e);
        drawing ||= setTimeout(draw, 200);
      },
      () => setEpoch((n) => n + 1),
      stream.signal,
    );
    return () => {
      stops.forEach((stop) => stop());
      clearInterval(timer);
      stream.abort();
    };
  }, []);
  const page = route[0] ?? "sessions";
  const place = route.join("/");
  useEffect(() => {
    document.title = [route[0] === "s" ? route[2] : t(`nav.${page as "sessions"}`), "boxd"].filter(Boolean).join(" · ");
  }, [place, language()]);
  // Behind a link, screen readers and the keyboard go on at the new content.
  const first = useRef(true);
  useEffect(() => {
    if (first.current) first.current = false;
    else main.current?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [place]);

  const link = (to: string) => (
    <a href={`#/${to}`} aria-current={page === to || (to === "sessions" && page === "s") ? "page" : undefined}>{t(`nav.${to as "sessions"}`)}</a>
  );
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => (e.preventDefault(), main.current?.focus())}>{t("skip")}</a>
      <header>
        <span class="brand">boxd</span>
        <nav aria-label={t("mainNav")}>{["sessions", "events", "history", "status"].map(link)}</nav>
        <div class="controls">
          <select aria-label={t("language")} value={language()} onChange={(e) => choose(e.currentTarget.value as Language)}>
            {Object.entries(languages).map(([code, name]) => <option key={code} value={code} lang={code}>{name}</option>)}
          </select>
          <select
            aria-label={t("theme")}
            value={theme}
            onChange={(e) => {
              const chosen = e.currentTarget.value as Theme;
              setTheme(chosen);
              applyTheme(chosen);
              localStorage.setItem(themeKey, chosen);
            }}
          >
            {(["auto", "light", "dark"] as const).map((one) => <option key={one} value={one}>{t(`theme.${one}`)}</option>)}
          </select>
          {login && <span class="who">{login.actor} · {login.tenant} · {t(`role.${login.role as "viewer"}`)}</span>}
          {login?.expires_at && <button type="button" onClick={() => act(signOut)}>{t("signOut")}</button>}
        </div>
      </header>
      <main id="main" ref={main} tabindex={-1}>
        {page === "s" && route[1] && route[2] ? (
          <SessionView key={`${route[1]}/${route[2]}`} tenant={route[1]} id={route[2]} tab={route[3] ?? "overview"} arg={route[4] ?? ""} events={events} epoch={epoch} />
        ) : page === "events" ? (
          <EventList events={events} />
        ) : page === "history" ? (
          <History />
        ) : page === "status" ? (
          <StatusView />
        ) : (
          <Sessions events={events} epoch={epoch} />
        )}
      </main>
      <footer><a href="/ui/licenses.txt">{t("licenses")}</a></footer>
      <Messages />
      {known && !login && <SignIn />}
    </>
  );
}

applyTheme((localStorage.getItem(themeKey) as Theme | null) ?? "auto");
render(<App />, document.getElementById("app")!);
