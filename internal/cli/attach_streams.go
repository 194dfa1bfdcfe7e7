package cli

import (
	"fmt"
	"io"
	"syscall"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/sigwatch"
	"github.com/boxd/boxd/relay"
)

// attachment is a connection to a managed process: a [relay.Attachment], or a fake one.
type attachment interface {
	Hello() relay.Hello
	Recv() (relay.Event, error)
	io.Writer
	CloseStdin() error
	Resize(rows, cols uint16) error
	Signal(sig int) error
	Close() error
}

// relayUntilEnd carries bytes in both directions until the process has ended or the user leaves.
func (a *App) relayUntilEnd(f *attachFlags, conn attachment, signals *sigwatch.Watch) error {
	signals.Start()
	var term *terminal
	if conn.Hello().TTY {
		term = a.openTerminal()
		if !f.observe && !f.noStdin {
			if err := term.makeRaw(); err != nil {
				return err
			}
			f.raw = term.keyboard != nil
			defer term.restore()
		}
	}
	signals.ForwardTo(func(sig syscall.Signal) error {
		// SIGHUP ends boxd attach, and so does a signal that cannot be passed on.
		if !f.sigProxy || f.observe || sig == syscall.SIGHUP || conn.Signal(int(sig)) != nil {
			signals.Cancel()
		}
		return nil
	})
	if term != nil && !f.observe {
		defer term.follow(func(size engine.WindowSize) error { return conn.Resize(size.Rows, size.Cols) })()
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
	if sig := signals.Received(); err != nil && sig != 0 {
		return &statusError{128 + int(sig), fmt.Errorf("stopped by %s, the process keeps running", signalName(sig))}
	}
	if err != nil {
		return explainAttach(err)
	}
	result := engine.Result{Verdict: engine.Verdict(exit.Verdict), ExitCode: exit.Code, Signal: syscall.Signal(exit.Signal), Limit: exit.Limit}
	if result.Verdict == "" {
		result.Verdict = engine.Exited
		if exit.Signal != 0 {
			result.Verdict = engine.Signaled
		}
	}
	return a.ended(result, false, result.Status())
}

// notice prints a message on stderr, even if the terminal is raw.
func (a *App) notice(f *attachFlags, format string, args ...any) {
	margin := ""
	if f.raw {
		margin = "\r"
	}
	a.say(margin+"boxd: "+format+margin, args...)
}

// passOutput copies the output of the process until the daemon reports its end.
func (a *App) passOutput(f *attachFlags, conn attachment) (relay.Exit, error) {
	for {
		event, err := conn.Recv()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF // the end of the process is reported before that
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
			a.notice(f, "%d bytes of %v are gone", e.To-e.From, e.Stream)
		case relay.StdinLost:
			a.notice(f, "%d bytes of stdin may not have reached the process: another client has written meanwhile", e.Bytes)
		case relay.Refused:
			a.notice(f, "%s", printable(e.Reason))
		case relay.WriterChanged:
			if !e.Writer {
				a.notice(f, "another client has taken over, this one only watches")
			}
		case relay.Exited:
			return e.Exit, nil
		}
	}
}

// passStdin copies stdin to the process until it ends or the user types the detach keys.
func (a *App) passStdin(f *attachFlags, conn attachment, term *terminal, detach func()) {
	typed := term != nil && term.keyboard != nil
	keys := &detacher{keys: f.detachKeys}
	if !typed {
		keys.keys = nil // the input may contain any byte
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := a.Stdin.Read(buf)
		out, leave := keys.filter(buf[:n])
		if len(out) > 0 {
			// Recv reports the error. A user at the keyboard must still be able to leave.
			if _, werr := conn.Write(out); werr != nil && !typed {
				return
			}
		}
		switch {
		case leave:
			detach()
			return
		case err == nil:
		case err == io.EOF && typed:
			detach() // the terminal is gone
			return
		default:
			_ = conn.CloseStdin() // Recv reports a lost connection
			return
		}
	}
}
