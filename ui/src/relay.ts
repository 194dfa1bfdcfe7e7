// The relay protocol of docs/relay.md, as a client that reconnects. It knows no terminal: the owner gets
// bytes in order, says when it has consumed them, and sends bytes, sizes and signals.

/** The end of a process; code is -1 and signal 0 where there is none. */
export interface Exit {
  code: number;
  signal: number;
  verdict: string;
  limit: string;
}

/** What a connection is at the moment. */
export type Phase = "connecting" | "open" | "waiting" | "ended" | "failed";

export interface Events {
  /** Bytes of stream 1 (stdout) or 2 (stderr), each once. done must be called when they are consumed; old bytes were there before the relay first attached. */
  data(stream: 1 | 2, bytes: Uint8Array, old: boolean, done: () => void): void;
  /** Bytes that are gone for ever. */
  gap(stream: 1 | 2, bytes: number): void;
  phase(phase: Phase, reason?: string): void;
  /** Whether input is accepted. */
  writer(isWriter: boolean): void;
  exit(exit: Exit): void;
  refused(text: string): void;
  /** Input was dropped, because somebody else writes now or the process takes none. */
  unsent(): void;
}

export interface Options {
  /** URL of the relay, with ws: or wss:, without a query. */
  url: string;
  /** Sub-protocols of each connection: the first is what the server accepts. */
  protocols(): string[];
  /** Whether this user may write; asked before each connection. */
  write(): boolean;
  /** Called when a connection could not be made; false: do not try again. The browser does not say why a WebSocket was refused. */
  mayRetry(): Promise<boolean>;
  events: Events;
}

const frames = {
  hello: 0x01, data: 0x02, gap: 0x03, stdinAck: 0x04, writer: 0x05, refused: 0x06, exit: 0x07,
  stdin: 0x11, ack: 0x13, resize: 0x14,
} as const;

const maxStdin = 65536; // bytes of one frame
const maxWaiting = 4 << 20; // bytes of input that wait for the server
const ackEvery = 256 << 10; // or a quarter of the window
const ackPause = 5; // ms after a stream pauses
const firstPause = 250; // ms before the second attempt; it doubles
const longestPause = 5000;

interface Stream {
  received: number; // offset behind the last byte that came
  consumed: number; // offset behind the last byte that the owner has consumed
  acked: number;
  oldEnd: number; // end of the stream when the relay first attached
}

/** A number of a frame: offsets are below 2^53 here, as JavaScript counts bytes. */
const offsetAt = (v: DataView, at: number): number => Number(v.getBigUint64(at));

export class Relay {
  #o: Options;
  #ws: WebSocket | null = null;
  #client = Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
  #streams: (Stream | undefined)[] = []; // by number; none before the first Hello
  #window = 0;
  #takeover = false;
  #watch = false; // somebody else is the writer: look on, until the user takes over
  #isWriter = false; // in the last connection that was greeted
  #open = false; // this connection was greeted
  #stdin: Uint8Array[] = []; // not accepted yet, in order
  #stdinAt = -1; // offset of the first byte of #stdin; -1: not known
  #sent = 0; // offset behind the last byte that was sent on this connection
  #stdinWindow = 0;
  #stdinClosed = false;
  #size: { rows: number; cols: number } | null = null;
  #pause = firstPause;
  #timer = 0;
  #ackTimer = 0;
  #over = false;

  constructor(o: Options) {
    this.#o = o;
    this.#connect();
  }

  /** Bytes for stdin. They are sent once the server has room, and again after a lost connection. false: there is no writer here, or too much waits already. */
  send(bytes: Uint8Array): boolean {
    const waiting = this.#stdin.reduce((n, piece) => n + piece.length, 0);
    if (!this.#isWriter || this.#stdinClosed || this.#over || waiting + bytes.length > maxWaiting) return false;
    this.#stdin.push(bytes);
    this.#flush();
    return true;
  }

  resize(rows: number, cols: number): void {
    this.#size = { rows, cols };
    this.#sendSize();
  }

  /** Become the writer in place of another client. */
  takeOver(): void {
    this.#takeover = true;
    this.#watch = false;
    this.#reconnect();
  }

  /** Try at once, for example after a new login. */
  retry(): void {
    if (!this.#over && !this.#ws) {
      this.#pause = firstPause;
      this.#connect();
    }
  }

  close(): void {
    this.#over = true;
    clearTimeout(this.#timer);
    clearTimeout(this.#ackTimer);
    this.#ws?.close(1000);
    this.#ws = null;
  }

  #reconnect(): void {
    const old = this.#ws;
    this.#ws = null; // its events are not heard any more
    this.#open = false;
    old?.close(1000);
    this.#connect();
  }

  #connect(): void {
    clearTimeout(this.#timer);
    const asWriter = !this.#watch && this.#o.write();
    const at = this.#streams[1] ? `${this.#streams[1].received},${this.#streams[2]?.received ?? 0}` : "oldest";
    const q = new URLSearchParams({ mode: asWriter ? "write" : "observe", since: at, client: this.#client, ack: "1" });
    if (asWriter && this.#takeover) q.set("takeover", "1");
    this.#o.events.phase("connecting");
    const ws = new WebSocket(`${this.#o.url}?${q}`, this.#o.protocols());
    ws.binaryType = "arraybuffer";
    this.#ws = ws;
    let greeted = false;
    ws.onmessage = ({ data }) => {
      if (this.#ws !== ws) return;
      if (!(data instanceof ArrayBuffer) || data.byteLength === 0) return this.#fail("message is not binary");
      greeted = true;
      this.#frame(new Uint8Array(data));
    };
    ws.onclose = (e) => {
      if (this.#ws !== ws) return;
      this.#ws = null;
      this.#open = false;
      void this.#closed(e.code, e.reason, greeted);
    };
  }

  async #closed(code: number, reason: string, greeted: boolean): Promise<void> {
    if (this.#over) return;
    if (code === 1000 && greeted) return this.#finish("ended");
    if ([1002, 1003, 1008, 1009, 4001].includes(code)) return this.#fail(reason || `close ${code}`);
    const taken = code === 4009;
    if (!greeted && !taken && !(await this.#o.mayRetry())) return this.#finish("failed");
    if (this.#over || this.#ws) return;
    // Whatever else refuses a connection, such as a daemon that is starting or has too many, does not make another
    // client the writer: what was typed waits.
    this.#watch ||= taken;
    if (greeted || taken) this.#takeover = false;
    if (greeted) this.#pause = firstPause;
    this.#o.events.phase("waiting", reason);
    this.#timer = setTimeout(() => this.#connect(), taken ? 0 : this.#pause);
    this.#pause = Math.min(2 * this.#pause, longestPause);
  }

  #finish(phase: "ended" | "failed", reason?: string): void {
    this.#over = true;
    this.#o.events.phase(phase, reason);
  }

  #fail(reason: string): void {
    this.close();
    this.#o.events.phase("failed", reason);
  }

  #frame(b: Uint8Array): void {
    const v = new DataView(b.buffer);
    switch (b[0]) {
      case frames.hello:
        return this.#hello(v);
      case frames.data: {
        const n = b[1] as 1 | 2;
        const s = this.#streams[n];
        if (!s || offsetAt(v, 2) !== s.received) return this.#fail(`stream ${n}: not continuous`);
        const bytes = b.subarray(10);
        const old = s.received < s.oldEnd;
        const end = (s.received += bytes.length);
        this.#o.events.data(n, bytes, old, () => this.#consumed(s, end));
        return;
      }
      case frames.gap: {
        const n = b[1] as 1 | 2;
        const s = this.#streams[n];
        const to = offsetAt(v, 10);
        if (!s || offsetAt(v, 2) !== s.received) return this.#fail(`stream ${n}: not continuous`);
        this.#o.events.gap(n, to - s.received);
        s.received = to;
        return this.#consumed(s, to);
      }
      case frames.stdinAck:
        this.#accepted(offsetAt(v, 2));
        if (b[1] === 1) {
          this.#stdinClosed = true;
          this.#drop();
        }
        return this.#flush();
      case frames.writer:
        this.#isWriter = b[1] === 1;
        if (!this.#isWriter) {
          this.#drop();
          this.#watch = true; // somebody has taken over: do not take it back after a lost connection
        }
        return this.#o.events.writer(this.#isWriter);
      case frames.refused:
        return this.#o.events.refused(new TextDecoder().decode(b.subarray(1)));
      case frames.exit: {
        const verdict = b[20] ?? 0;
        const limit = b[21 + verdict] ?? 0;
        const text = (from: number, n: number) => new TextDecoder().decode(b.subarray(from, from + n));
        this.#o.events.exit({ code: v.getInt16(1), signal: b[3] ?? 0, verdict: text(21, verdict), limit: text(22 + verdict, limit) });
        return;
      }
      default:
        return this.#fail(`unknown frame ${b[0]}`);
    }
  }

  // Hello: version u8, flags u8, 0 u8, stdin accepted u64, stdin window u32, window u32, then for stdout and
  // stderr oldest, end and start u64.
  #hello(v: DataView): void {
    if (v.getUint8(1) !== 1) return this.#fail("unknown version of the relay");
    const flags = v.getUint8(2);
    const accepted = offsetAt(v, 4);
    this.#stdinWindow = v.getUint32(12);
    this.#window = v.getUint32(16);
    for (const [n, at, there] of [[1, 20, true], [2, 44, (flags & 8) !== 0]] as const) {
      if (!there) continue;
      const start = offsetAt(v, at + 16);
      const known = this.#streams[n];
      if (known && known.received !== start) return this.#fail("this is another process than before");
      const s = known ?? { received: start, consumed: start, acked: start, oldEnd: offsetAt(v, at + 8) };
      s.acked = start; // of this connection
      this.#streams[n] = s;
    }
    if (this.#stdinAt >= 0 && accepted < this.#stdinAt) return this.#fail("less of the input was accepted than before");
    this.#isWriter = (flags & 1) !== 0;
    this.#open = true;
    if (this.#stdinAt < 0 || !this.#isWriter || (flags & 16) !== 0) {
      // What another client has written meanwhile may be a part of what was accepted.
      this.#drop();
      this.#stdinAt = accepted;
    }
    this.#accepted(accepted);
    this.#sent = accepted;
    this.#o.events.phase("open");
    this.#o.events.writer(this.#isWriter);
    this.#sendSize();
    this.#flush();
    for (const s of this.#streams) if (s) this.#ack(s, true);
  }

  /** Drops input that nobody will accept. */
  #drop(): void {
    if (this.#stdin.length > 0) this.#o.events.unsent();
    this.#stdin = [];
  }

  /** Drops input that the process has, up to offset. */
  #accepted(offset: number): void {
    while (this.#stdin.length > 0) {
      const first = this.#stdin[0]!;
      const done = offset - this.#stdinAt;
      if (done <= 0) return;
      if (done < first.length) {
        this.#stdin[0] = first.subarray(done);
        this.#stdinAt = offset;
        return;
      }
      this.#stdin.shift();
      this.#stdinAt += first.length;
    }
    this.#stdinAt = Math.max(this.#stdinAt, offset);
  }

  /** Sends input that was not sent on this connection, as far as the window allows. */
  #flush(): void {
    if (!this.#isWriter || !this.#open) return;
    let at = this.#stdinAt;
    for (const piece of this.#stdin) {
      let from = Math.max(0, this.#sent - at);
      while (from < piece.length) {
        const room = this.#stdinWindow - (at + from - this.#stdinAt);
        const n = Math.min(piece.length - from, maxStdin, room);
        if (n <= 0) return;
        const b = new Uint8Array(9 + n);
        b[0] = frames.stdin;
        new DataView(b.buffer).setBigUint64(1, BigInt(at + from));
        b.set(piece.subarray(from, from + n), 9);
        this.#ws?.send(b);
        from += n;
        this.#sent = at + from;
      }
      at += piece.length;
    }
  }

  #sendSize(): void {
    if (!this.#isWriter || !this.#open || !this.#size) return;
    const b = new Uint8Array(5);
    b[0] = frames.resize;
    const v = new DataView(b.buffer);
    v.setUint16(1, this.#size.rows);
    v.setUint16(3, this.#size.cols);
    this.#ws?.send(b);
  }

  #consumed(s: Stream, offset: number): void {
    s.consumed = Math.max(s.consumed, offset);
    this.#ack(s, s.consumed - s.acked >= Math.min(this.#window / 4, ackEvery));
  }

  #ack(s: Stream, now: boolean): void {
    if (s.consumed <= s.acked || this.#window === 0) return;
    if (!now) {
      clearTimeout(this.#ackTimer);
      this.#ackTimer = setTimeout(() => this.#streams.forEach((one) => one && this.#ack(one, true)), ackPause);
      return;
    }
    if (this.#ws?.readyState !== WebSocket.OPEN) return;
    const b = new Uint8Array(10);
    b[0] = frames.ack;
    b[1] = this.#streams.indexOf(s);
    new DataView(b.buffer).setBigUint64(2, BigInt(s.consumed));
    this.#ws.send(b);
    s.acked = s.consumed;
  }
}
