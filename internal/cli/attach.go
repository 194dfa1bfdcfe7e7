package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"syscall"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/relay"
	"github.com/spf13/cobra"
)

type attachFlags struct {
	remoteFlags
	observe, takeOver, noStdin bool
	sigProxy                   bool
	since                      relay.Position
	detachKeys                 []byte
	giveUp                     time.Duration

	lost bool // the user was told that the connection is lost; of who is in Recv
}

func (a *App) newAttach() *cobra.Command {
	f := attachFlags{detachKeys: []byte{'p' & 0x1f, 'q' & 0x1f}}
	cmd := &cobra.Command{
		Use:   "attach SESSION PROCESS [flags]",
		Short: "Connect to stdin, stdout and stderr of a managed process",
		Long: `Connect to stdin, stdout and stderr of a managed process.

Bytes pass untouched in both directions, and the end of stdin ends that of the
process, so a server that speaks over its stdio works through it. If the process has
a terminal and boxd is at one, keys go to the process as they are; the detach keys,
^P ^Q, leave it running.

A lost connection is made again, also to a daemon that was killed and started again:
no byte is lost or repeated. Output begins with the oldest that is kept, or --since.

Exit status: that of the process as boxd run has it, 0 after the detach keys.
SIGINT, SIGTERM and SIGQUIT are passed on to the process, a second one leaves it;
SIGHUP leaves it. One client writes, any number watch with --observe.`,
		Example: `  boxd attach lab shell
  boxd attach --observe lab server
  boxd attach --since end --take-over lab server`,
		Args: exactly("SESSION", "PROCESS"),
		RunE: func(_ *cobra.Command, args []string) error { return a.attach(&f, args[0], args[1]) },

		ValidArgsFunction: a.completeNames(&f.remoteFlags, completeSession, completeProcess),
	}
	fs := cmd.Flags()
	fs.BoolVar(&f.observe, "observe", false, "watch only: stdin and signals are not passed on")
	fs.BoolVar(&f.takeOver, "take-over", false, "become the one who writes in place of another client")
	fs.BoolVar(&f.noStdin, "no-stdin", false, "leave stdin alone, as with stdin open and silent")
	fs.BoolVar(&f.sigProxy, "sig-proxy", true, "pass signals on to the process")
	fs.Var(sinceValue(&f.since), "since", "begin stdout at `OFFSET` in bytes, \"oldest\" or \"end\"")
	fs.Var(keysValue(&f.detachKeys), "detach-keys", "`KEYS` that leave a process at a terminal, such as ctrl-a,d; \"\" for none")
	fs.Var(durationValue(&f.giveUp, ""), "give-up", "stop trying to make a lost connection again after `DURATION` (default: try for ever)")
	f.register(cmd)
	must(cmd.RegisterFlagCompletionFunc("give-up", cobra.NoFileCompletions))
	must(cmd.RegisterFlagCompletionFunc("since", cobra.FixedCompletions([]string{"oldest", "end"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("detach-keys", cobra.FixedCompletions([]string{"ctrl-p,ctrl-q", "ctrl-a,d"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// attachment is a relay to a managed process: a [relay.Attachment].
type attachment interface {
	Hello() relay.Hello
	Recv() (relay.Event, error)
	io.Writer
	CloseStdin() error
	Resize(rows, cols uint16) error
	Signal(sig int) error
	Close() error
}

func (a *App) attach(f *attachFlags, session, process string) error {
	if f.observe && f.takeOver {
		return &engine.FieldError{Field: "--take-over", Value: "with --observe", Rule: "cannot be used together"}
	}
	c, err := a.newClient(&f.remoteFlags)
	if err != nil {
		return err
	}
	defer c.Close()
	signals := a.watchSignals()
	defer signals.stop()
	conn, err := c.Attach(signals.ctx, session, process, a.attachOptions(f))
	if err != nil {
		if sig := signals.received(); sig != 0 {
			return &statusError{128 + int(sig), fmt.Errorf("stopped by %s", signalName(sig))}
		}
		return explainAttach(err)
	}
	defer conn.Close()
	return a.relayUntilEnd(f, conn, signals)
}

func (a *App) attachOptions(f *attachFlags) client.AttachOptions {
	o := client.AttachOptions{
		Write: !f.observe, TakeOver: f.takeOver, GiveUp: f.giveUp,
		Since: relay.Since{Stdout: f.since},
		Lost: func(error) {
			if !f.lost {
				a.say("\rboxd: connection lost, trying again\r")
			}
			f.lost = true
		},
	}
	if f.since.Kind == relay.End {
		o.Since.Stderr = f.since
	}
	return o
}

// explainAttach says what to do about a refusal.
func explainAttach(err error) error {
	if client.IsCode(err, apitypes.CodeWriterTaken) {
		return fmt.Errorf("%w: --observe watches only, --take-over writes in the other's place", err)
	}
	return explainRemote(err)
}

// relayUntilEnd carries bytes until the process has ended, or the user leaves.
func (a *App) relayUntilEnd(f *attachFlags, conn attachment, signals *signalWatch) error {
	signals.start()
	var term *terminal
	if conn.Hello().TTY {
		term = a.openTerminal()
		if !f.observe {
			if err := term.makeRaw(); err != nil {
				return err
			}
			defer term.restore()
		}
	}
	signals.forwardTo(&attachedProcess{conn, signals.cancel, f.sigProxy && !f.observe})
	if term != nil && !f.observe {
		defer term.follow(&attachedProcess{conn: conn})()
	}
	left := make(chan struct{})
	if !f.observe && !f.noStdin {
		go a.passStdin(f, conn, term, func() { close(left); conn.Close() })
	}
	exit, err := a.passOutput(f, conn)
	if term != nil {
		term.restore()
	}
	select {
	case <-left:
		a.say("boxd: detached")
		return nil
	default:
	}
	if sig := signals.received(); err != nil && sig != 0 {
		return &statusError{128 + int(sig), fmt.Errorf("stopped by %s, the process goes on", signalName(sig))}
	}
	if err != nil {
		return explainAttach(err)
	}
	return a.attachEnded(exit)
}

// passOutput writes what the process writes until its end is told.
func (a *App) passOutput(f *attachFlags, conn attachment) (relay.Exit, error) {
	for {
		event, err := conn.Recv()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF // an exit comes first
		}
		if err != nil {
			return relay.Exit{}, err
		}
		f.lost = false
		switch e := event.(type) {
		case relay.Data:
			w := a.Stdout
			if e.Stream == relay.Stderr {
				w = a.Stderr
			}
			if _, err := w.Write(e.Bytes); err != nil {
				return relay.Exit{}, fmt.Errorf("writing %v: %w", e.Stream, err)
			}
		case relay.Gap:
			a.say("\rboxd: %d bytes of %v are gone\r", e.To-e.From, e.Stream)
		case relay.StdinLost:
			a.say("\rboxd: %d bytes of stdin may not have reached the process: another client has written meanwhile\r", e.Bytes)
		case relay.Refused:
			a.say("\rboxd: %s\r", printable(e.Reason))
		case relay.WriterChanged:
			if !e.Writer {
				a.say("\rboxd: another client has taken over, this one only watches\r")
			}
		case relay.Exited:
			return e.Exit, nil
		}
	}
}

// passStdin hands over stdin until its end or the detach keys.
func (a *App) passStdin(f *attachFlags, conn attachment, term *terminal, detach func()) {
	keys := &detacher{keys: f.detachKeys}
	if term == nil || term.keyboard == nil {
		keys.keys = nil // not typed: any byte may come
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := a.Stdin.Read(buf)
		out, leave := keys.filter(buf[:n])
		if len(out) > 0 {
			if _, werr := conn.Write(out); werr != nil {
				return // Recv tells why
			}
		}
		switch {
		case leave:
			detach()
			return
		case err == nil:
		case err == io.EOF && term != nil && term.keyboard != nil:
			detach() // the terminal is gone
			return
		default:
			_ = conn.CloseStdin() // Recv tells if the connection is why
			return
		}
	}
}

// attachEnded reports how the process ended, as boxd run does.
func (a *App) attachEnded(e relay.Exit) error {
	r := engine.Result{Verdict: engine.Verdict(e.Verdict), ExitCode: e.Code, Signal: syscall.Signal(e.Signal), Limit: e.Limit}
	if r.Verdict == "" {
		r.Verdict = engine.Exited
		if e.Signal != 0 {
			r.Verdict = engine.Signaled
		}
	}
	if line := verdictLine(r); line != "" {
		a.say("%s", line)
	}
	if status := r.Status(); status != 0 {
		return &statusError{status: status}
	}
	return nil
}

// attachedProcess is the process behind conn, for signals and window sizes.
type attachedProcess struct {
	conn  attachment
	leave func()
	proxy bool
}

// Signal passes sig on; SIGHUP, or one that is not for the process, leaves it.
func (p *attachedProcess) Signal(sig syscall.Signal) error {
	if !p.proxy || sig == syscall.SIGHUP {
		p.leave()
		return nil
	}
	return p.conn.Signal(int(sig))
}

func (p *attachedProcess) Resize(size engine.WindowSize) error {
	return p.conn.Resize(size.Rows, size.Cols)
}

func (p *attachedProcess) Wait() (engine.Result, error) {
	return engine.Result{}, errors.ErrUnsupported
}

// sinceValue is a position in a stream.
func sinceValue(dst *relay.Position) *textValue {
	return &textValue{"oldest", func(s string) error {
		switch s {
		case "oldest":
			*dst = relay.Position{Kind: relay.Oldest}
			return nil
		case "end":
			*dst = relay.Position{Kind: relay.End}
			return nil
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			return errors.New(`must be "oldest", "end" or an offset in bytes`)
		}
		*dst = relay.Position{Kind: relay.At, Offset: n}
		return nil
	}}
}
