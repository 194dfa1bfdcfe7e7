package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/boxd/boxd/bench/report"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/test/daemon"
	"github.com/boxd/boxd/test/langbot"
)

const (
	langbotExecTarget = 3.0                      // times a bare shell
	langbotReference  = 10900 * time.Microsecond // of LangBot's own runtime; the target is a sixth of it
	langbotRateTarget = 800                      // execs per second, four sessions
	langbotColdTarget = 15 * time.Millisecond

	linesBytes  = 10_000_000
	lineBytes   = 100
	linesTarget = 200e6 // bytes per second

	relays       = 200
	relayWindow  = 20 * time.Second
	relaysTarget = 10.0 // per cent of a processor
)

// inLangbot is the context of the bench's sessions.
var inLangbot = langbot.Context{Instance: "bench", Workspace: "w", Generation: 1}

// door is a daemon with LangBot's protocol, and connections to it.
type door struct {
	*served
	dialer langbot.Dialer
	bots   []*langbot.Client
}

// withDoor measures through LangBot's protocol, with n connections.
func (b *bench) withDoor(ctx context.Context, n int, measure func(*door) error) {
	s, err := b.serve("--langbot-listen", "127.0.0.1:0")
	if err == nil {
		d := &door{served: s}
		err = errors.Join(d.connect(ctx, n, measure), s.end())
	}
	if err != nil {
		b.fail(b.current, err)
	}
}

func (d *door) connect(ctx context.Context, n int, measure func(*door) error) error {
	address, err := d.LangbotAddress()
	if err != nil {
		return err
	}
	d.dialer = langbot.Dialer{Base: "ws://" + address, Deflate: true}
	for range n {
		bot, err := d.dialer.Dial(ctx, inLangbot.Instance)
		if err != nil {
			return err
		}
		defer bot.Close()
		d.bots = append(d.bots, bot)
	}
	return measure(d)
}

// run is a box_exec in a session, which must succeed.
func (d *door) run(ctx context.Context, bot int, session, cmd string) error {
	var r struct {
		Status string
		Code   *int `json:"exit_code"`
		Stderr string
	}
	err := d.bots[bot].Call(ctx, &inLangbot, "box_exec", object{"session_id": session, "cmd": cmd}, &r)
	if err == nil && (r.Code == nil || *r.Code != 0) {
		err = fmt.Errorf("running %q in %s: %+v", cmd, session, r)
	}
	return err
}

// bareShell runs the shell that the protocol uses for a command.
func bareShell() error { return exec.Command("sh", "-lc", "true").Run() }

// langbots measures commands through LangBot's protocol.
func (b *bench) langbots(ctx context.Context) {
	const what = "box_exec of true"
	b.withDoor(ctx, clients, func(d *door) error {
		for i := range clients {
			if err := d.run(ctx, i, sessionName(i), "true"); err != nil {
				return err
			}
		}
		one, err := b.alternate(b.n, timed(bareShell), timed(func() error { return d.run(ctx, 0, sessionName(0), "true") }))
		if err != nil {
			return err
		}
		g := goal{fmt.Sprintf("≤ %.0f × bare, ≤ %.2f ms", langbotExecTarget, (langbotReference/6).Seconds()*1e3),
			ratio(one[1], one[0]) <= langbotExecTarget && one[1].p50() <= langbotReference/6}
		b.times("langbot.exec", what, one[1], one[0], "sh -lc true", g)
		many, err := b.alternate(max(b.n/20, 5),
			together(clients, func(int) error { return bareShell() }),
			together(clients, func(i int) error { return d.run(ctx, i, sessionName(i), "true") }))
		if err != nil {
			return err
		}
		b.rate("langbot.rate", fmt.Sprintf("box_execs/s of true, %d sessions", clients), many[1], many[0],
			goal{fmt.Sprintf("≥ %d/s", langbotRateTarget), perSecond(many[1].p50()) >= langbotRateTarget})
		return errors.Join(b.langbotCold(ctx, d), b.lines(ctx, d))
	})
	b.langbotPool(ctx)
}

// langbotCold measures commands whose session has to be created.
func (b *bench) langbotCold(ctx context.Context, d *door) error {
	const what = "box_exec of true in a new session"
	n := 0
	cold, err := b.alternate(max(b.n/4, 10), timed(bareShell), func() (time.Duration, error) {
		n++
		session := fmt.Sprintf("cold-%d", n)
		took, err := timed(func() error { return d.run(ctx, 0, session, "true") })()
		return took, errors.Join(err, d.bots[0].Call(ctx, &inLangbot, "box_delete_session", object{"session_id": session}, nil))
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	b.times("langbot.new", what, cold[1], cold[0], "sh -lc true", goal{"≤ 15 ms", cold[1].p50() <= langbotColdTarget})
	return nil
}

// langbotPool measures the same while the pool has a box each time.
func (b *bench) langbotPool(ctx context.Context) {
	const what = "box_exec of true in a new session, from the pool"
	if err := os.Setenv("BOXD_POOL", "1"); err != nil {
		b.fail("langbot.new.pool", err)
		return
	}
	defer os.Unsetenv("BOXD_POOL")
	b.withDoor(ctx, 1, func(d *door) error {
		fresh := func(session string) error { return d.run(ctx, 0, session, "true") }
		for _, session := range []string{"first", "second"} { // so that such boxes are in demand
			if err := fresh(session); err != nil {
				return err
			}
		}
		n := 0
		s, err := b.alternate(max(b.n/10, 5), timed(bareShell), func() (time.Duration, error) {
			n++
			session := sessionName(n)
			took, err := d.fromPool(ctx, func() error { return fresh(session) })
			return took, errors.Join(err, d.bots[0].Call(ctx, &inLangbot, "box_delete_session", object{"session_id": session}, nil))
		})
		if err != nil {
			return err
		}
		b.times("langbot.new.pool", what, s[1], s[0], "sh -lc true", goal{"≤ 5 × bare", s[1].p50() <= 5*s[0].p50()})
		return nil
	})
}

// lines measures a stream of lines, each of which is a message.
func (b *bench) lines(ctx context.Context, d *door) error {
	what := fmt.Sprintf("relay of %d MB of lines of %d bytes", linesBytes/1_000_000, lineBytes)
	// The file exists before, so that only cat(1) runs beside the relay.
	const script = `yes "$(printf %099d 0)" | head -c 10000000 > /tmp/lines; while read -r go; do cat /tmp/lines; done`
	ws, err := d.attach(ctx, sessionName(0), "lines", "sh", "-c", script)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer ws.Close()
	s, err := b.alternate(max(b.n/20, 10), timed(func() error {
		if err := ws.WriteMessage(1, []byte("go")); err != nil { // a text message
			return err
		}
		return take(ws, linesBytes/lineBytes)
	}))
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	b.rates("langbot.lines", what, report.BytesPerSecond, linesBytes, s[0], nil, "",
		goal{"≥ 200 MB/s", linesBytes/s[0].p50().Seconds() >= linesTarget})
	return nil
}

// lineRelay is the relay of a managed process.
type lineRelay interface {
	NextReader() (int, io.Reader, error)
	WriteMessage(kind int, data []byte) error
	Close() error
}

// attach starts a process and attaches to it.
func (d *door) attach(ctx context.Context, session, id, command string, args ...string) (lineRelay, error) {
	err := d.bots[0].Call(ctx, &inLangbot, "box_start_managed_process", object{"session_id": session,
		"spec": object{"process_id": id, "command": command, "args": args}}, nil)
	if err != nil {
		return nil, err
	}
	return d.dialer.Relay(ctx, inLangbot.Headers(), protocol.Context(inLangbot).Runtime()+"-"+session, id)
}

// take receives n messages.
func take(r lineRelay, n int) error {
	for range n {
		_, message, err := r.NextReader()
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, message); err != nil {
			return err
		}
	}
	return nil
}

// manyRelays measures the cost of relays with a line per second each.
func (b *bench) manyRelays(ctx context.Context) {
	what := fmt.Sprintf("%d relays, a line a second each", relays)
	b.withDoor(ctx, 1, func(d *door) error {
		if _, err := exec.LookPath("bash"); err != nil {
			b.skip("langbot.relays", what, "a shell is needed that can wait without another process: "+err.Error())
			return nil
		}
		if err := d.bots[0].Call(ctx, nil, "box_init", object{"limits": object{"max_managed_processes": relays}}, nil); err != nil {
			return err
		}
		const boxes = 4
		ended := make(chan error, relays)
		for i := range relays {
			session := sessionName(i % boxes)
			if i < boxes {
				if err := d.run(ctx, 0, session, "true"); err != nil {
					return err
				}
			}
			const script = `exec {never}<> <(:); while echo '{"jsonrpc":"2.0","method":"tick"}'; do read -r -t 1 -u $never; done`
			ws, err := d.attach(ctx, session, fmt.Sprint(i), "bash", "-c", script)
			if err != nil {
				return err
			}
			defer ws.Close()
			go func() { ended <- take(ws, 1<<30) }()
		}
		alone, all, err := d.processorTime()
		if err != nil {
			return err
		}
		select {
		case err := <-ended:
			return fmt.Errorf("a relay has ended: %w", err)
		case <-time.After(relayWindow):
		}
		aloneAfter, allAfter, err := d.processorTime()
		if err != nil {
			return err
		}
		share := func(used time.Duration) float64 { return float64(used) / float64(relayWindow) * 100 }
		b.value("langbot.relays", what+", processor of daemon, launcher and agents", report.Percent, share(allAfter-all), 0, "",
			goal{"< 10 %", share(allAfter-all) < relaysTarget})
		b.value("langbot.relays.daemon", "… of the daemon", report.Percent, share(aloneAfter-alone), 0, "", goal{})
		return nil
	})
}

// processorTime returns the processor time of the daemon, and of the daemon, its launcher
// and the agents of its boxes together.
func (d *door) processorTime() (alone, all time.Duration, err error) {
	if alone, err = processorTime(d.PID()); err != nil {
		return 0, 0, err
	}
	all = alone
	launchers := d.Find(daemon.Launcher)
	if len(launchers) != 1 {
		return 0, 0, fmt.Errorf("the daemon has %d launchers", len(launchers))
	}
	for _, launcher := range launchers {
		for _, pid := range append(children(launcher), launcher) {
			used, err := processorTime(pid)
			if err != nil {
				return 0, 0, err
			}
			all += used
		}
	}
	return alone, all, nil
}
