// Package sigwatch passes the signals that boxd receives on to a command. It is linked into the part of boxd that has to
// start fast.
package sigwatch

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwarded are the signals with which people and supervisors end a program.
var forwarded = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// Watch passes signals on to the command. Before the command is started, and with the
// second signal, it cancels Context instead, which kills the command.
type Watch struct {
	Context context.Context // ends with the second signal, or with one before the command is started

	Cancel context.CancelFunc // ends it now
	in     <-chan os.Signal
	quit   chan struct{}
	done   chan struct{}
	undo   func()

	mu       sync.Mutex
	starting bool                       // the command may be running already
	deliver  func(syscall.Signal) error // to the command; nil until it is known to run
	first    syscall.Signal             // 0 until one was received
}

// New starts watching; the caller calls Stop. in replaces the signals of this process; nil: those.
func New(in <-chan os.Signal) *Watch {
	w := &Watch{in: in, quit: make(chan struct{}), done: make(chan struct{}), undo: func() {}}
	w.Context, w.Cancel = context.WithCancel(context.Background())
	if w.in == nil {
		in := make(chan os.Signal, 8)
		// nohup(1) and shells without job control ignore signals for the programs that they start.
		wanted := slices.DeleteFunc(slices.Clone(forwarded), signal.Ignored)
		if len(wanted) > 0 { // an empty list would mean all signals
			signal.Notify(in, wanted...)
		}
		w.in, w.undo = in, func() { signal.Stop(in) }
	}
	go func() {
		defer close(w.done)
		for {
			select {
			case sig := <-w.in:
				w.handle(sig)
			case <-w.quit:
				w.drain()
				return
			}
		}
	}()
	return w
}

// drain handles the signals that have come already.
func (w *Watch) drain() {
	for {
		select {
		case sig := <-w.in:
			w.handle(sig)
		default:
			return
		}
	}
}

func (w *Watch) handle(received os.Signal) {
	sig, ok := received.(syscall.Signal)
	if !ok {
		return
	}
	w.mu.Lock()
	deliver, again := w.deliver, w.first != 0
	if !again {
		w.first = sig
	}
	keep := w.starting && deliver == nil && !again // ForwardTo delivers it
	w.mu.Unlock()
	switch {
	case keep:
	case deliver == nil || again:
		w.Cancel()
	default:
		_ = deliver(sig) // on an error, the command has ended, or will end with its box
	}
}

// Start announces that the command is about to be started: from now on, signals are for it.
func (w *Watch) Start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.starting = true
}

// ForwardTo has signals delivered from now on, beginning with the one that came while the
// command was being started, if any.
func (w *Watch) ForwardTo(deliver func(syscall.Signal) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deliver = deliver
	if w.first != 0 {
		_ = deliver(w.first) // on an error, the command has ended
	}
}

// Restart undoes Start and ForwardTo: the command was not started after all. It returns false if a signal has come
// meanwhile.
func (w *Watch) Restart() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.starting, w.deliver = false, nil
	return w.first == 0
}

// Received returns the first signal, or 0.
func (w *Watch) Received() syscall.Signal {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.first
}

// Stop ends the watch and waits for its goroutine. Signals have their usual effect again; one that came before has been
// handled, so Received returns it.
func (w *Watch) Stop() {
	w.undo()
	close(w.quit)
	<-w.done
	w.Cancel()
}

// Name returns the name of a signal.
func Name(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return sig.String()
}
