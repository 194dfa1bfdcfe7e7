// Numbers and times in the language of the page. A number and its unit stay on one line.
import { language, t } from "./i18n";

const units = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(n: number): string {
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) {
    n /= 1024;
    unit++;
  }
  return `${number(n, unit > 0 && n < 100 ? 1 : 0)}\u00a0${units[unit]}`;
}

export const number = (n: number, digits = 0): string => new Intl.NumberFormat(language(), { maximumFractionDigits: digits }).format(n);

/** A limit; below 0 there is none. */
export const limit = (n: number, format: (n: number) => string): string => (n < 0 ? t("unlimited") : format(n));

export const percent = (share: number): string => `${number(100 * share)}\u00a0%`;

/** A length of time in seconds: 0:42, 1:05:00, 3 d 4 h. */
export function length(seconds: number): string {
  const s = Math.max(0, Math.floor(seconds));
  const two = (n: number) => String(n).padStart(2, "0");
  if (s >= 86_400) return t("daysHours", { days: Math.floor(s / 86_400), hours: Math.floor((s % 86_400) / 3600) });
  if (s >= 3600) return `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
  return `${Math.floor(s / 60)}:${two(s % 60)}`;
}

/** A short length of time in seconds, such as that of a command. */
export const took = (seconds: number): string => (seconds < 60 ? `${number(seconds, seconds < 1 ? 3 : 1)}\u00a0s` : length(seconds));

export const time = (iso: string): string => new Intl.DateTimeFormat(language(), { dateStyle: "short", timeStyle: "medium" }).format(new Date(iso));

export const clock = (iso: string): string => new Intl.DateTimeFormat(language(), { timeStyle: "medium" }).format(new Date(iso));

export const ago = (iso: string, now: number): string => t("ago", { time: length((now - Date.parse(iso)) / 1000) });
