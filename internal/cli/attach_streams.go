package cli

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/relay"
)

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

// relayUntilEnd carries bytes until the process has ended, or the user leaves.
func (a *App) relayUntilEnd(f *attachFlags, conn attachment, signals *signalWatch) error {
	signals.start()
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
		return &statusError{128 + int(sig), fmt.Errorf("stopped by %s, the process keeps running", signalName(sig))}
	}
	if err != nil {
		return explainAttach(err)
	}
	return a.attachEnded(exit)
}

// notice says something on stderr, while the terminal may be raw.
func (a *App) notice(f *attachFlags, format string, args ...any) {
	margin := ""
	if f.raw {
		margin = "\r"
	}
	a.say(margin+"boxd: "+format+margin, args...)
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

// passStdin hands over stdin until its end or the detach keys.
func (a *App) passStdin(f *attachFlags, conn attachment, term *terminal, detach func()) {
	typed := term != nil && term.keyboard != nil
	keys := &detacher{keys: f.detachKeys}
	if !typed {
		keys.keys = nil // any byte may come
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := a.Stdin.Read(buf)
		out, leave := keys.filter(buf[:n])
		if len(out) > 0 {
			// Recv tells why it fails. Somebody who types must still be able to leave.
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

// Signal passes sig on. SIGHUP, or one that cannot be sent or is not for the process,
// leaves it.
func (p *attachedProcess) Signal(sig syscall.Signal) error {
	if !p.proxy || sig == syscall.SIGHUP || p.conn.Signal(int(sig)) != nil {
		p.leave()
	}
	return nil
}

func (p *attachedProcess) Resize(size engine.WindowSize) error {
	return p.conn.Resize(size.Rows, size.Cols)
}

func (p *attachedProcess) Wait() (engine.Result, error) {
	return engine.Result{}, errors.ErrUnsupported
}
