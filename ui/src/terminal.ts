// A terminal for a managed process: xterm.js over a relay. It is loaded when it is used.
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import { Relay, type Exit, type Options, type Phase } from "./relay";

export interface Owner {
  url: string;
  protocols: Options["protocols"];
  mayRetry: Options["mayRetry"];
  write: Options["write"];
  label: string;
  screenReader: boolean;
  phase(phase: Phase, reason?: string): void;
  writer(isWriter: boolean): void;
  exit(exit: Exit): void;
  gap(bytes: number): void;
  refused(text: string): void;
  unsent(): void; // input was not accepted, and is lost
  leave(): void; // the user leaves the terminal with F6
}

export interface Pane {
  takeOver(): void;
  retry(): void;
  focus(): void;
  setScreenReader(on: boolean): void;
  dispose(): void;
}

const colors = { background: "#10151a", foreground: "#e4e8ea", cursor: "#7fd4c1", selectionBackground: "#2f5d73" };

export function openTerminal(host: HTMLElement, o: Owner): Pane {
  const term = new Terminal({
    theme: colors,
    fontFamily: "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace",
    fontSize: 14,
    scrollback: 10_000,
    cursorBlink: false,
    screenReaderMode: o.screenReader,
    disableStdin: true,
    // A program in a box decides what a hyperlink (OSC 8) shows and where it leads: nothing opens.
    linkHandler: { activate: () => undefined },
  });
  const fit = new FitAddon();
  term.loadAddon(fit);
  term.open(host);
  term.textarea?.setAttribute("aria-label", o.label);
  const encoder = new TextEncoder();

  // What was there before is shown again, and must not be answered again: the answers to its queries
  // ("which terminal are you?") would be typed into the program that runs now.
  let replaying = 0; // writes
  let writer = false;
  const admitInput = () => (term.options.disableStdin = !writer);
  const relay = new Relay({
    url: o.url,
    protocols: o.protocols,
    mayRetry: o.mayRetry,
    write: o.write,
    events: {
      data(_stream, bytes, old, done) {
        if (old) replaying++;
        term.write(bytes, () => {
          if (old) replaying--;
          done();
        });
      },
      gap: (_stream, bytes) => o.gap(bytes),
      phase: o.phase,
      writer(is) {
        writer = is;
        admitInput();
        o.writer(is);
      },
      exit: o.exit,
      refused: o.refused,
      unsent: o.unsent,
    },
  });
  const send = (bytes: Uint8Array) => {
    if (replaying === 0 && !relay.send(bytes)) o.unsent();
  };
  term.onData((text) => send(encoder.encode(text)));
  term.onBinary((text) => send(Uint8Array.from(text, (c) => c.charCodeAt(0))));
  term.onResize(({ rows, cols }) => relay.resize(rows, cols));
  term.attachCustomKeyEventHandler((e) => {
    if (e.key !== "F6") return true;
    if (e.type === "keydown") o.leave();
    e.preventDefault();
    return false;
  });
  const size = new ResizeObserver(() => fit.fit());
  size.observe(host);
  fit.fit();
  relay.resize(term.rows, term.cols);
  return {
    takeOver: () => relay.takeOver(),
    retry: () => relay.retry(),
    focus: () => term.focus(),
    setScreenReader: (on) => (term.options.screenReaderMode = on),
    dispose() {
      size.disconnect();
      relay.close();
      term.dispose();
    },
  };
}
