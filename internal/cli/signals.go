package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwarded are the signals with which people and supervisors end a program.
var forwarded = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// signalWatch passes signals on to the command. Before the command is started, and with the
// second signal, it cancels ctx instead, which kills the command.
type signalWatch struct {
	ctx    context.Context
	cancel context.CancelFunc
	in     <-chan os.Signal
	quit   chan struct{}
	done   chan struct{}
	undo   func()

	mu       sync.Mutex
	starting bool                       // the command may be running already
	deliver  func(syscall.Signal) error // to the command; nil until it is known to run
	first    syscall.Signal             // 0 until one was received
}

// watchSignals starts watching; the caller calls stop.
func (a *App) watchSignals() *signalWatch {
	w := &signalWatch{in: a.Signals, quit: make(chan struct{}), done: make(chan struct{}), undo: func() {}}
	w.ctx, w.cancel = context.WithCancel(context.Background())
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
				if s, ok := sig.(syscall.Signal); ok {
					w.handle(s)
				}
			case <-w.quit:
				return
			}
		}
	}()
	return w
}

func (w *signalWatch) handle(sig syscall.Signal) {
	w.mu.Lock()
	deliver, again := w.deliver, w.first != 0
	if !again {
		w.first = sig
	}
	keep := w.starting && deliver == nil && !again // forwardTo delivers it
	w.mu.Unlock()
	switch {
	case keep:
	case deliver == nil || again:
		w.cancel()
	default:
		_ = deliver(sig) // on an error, the command has ended, or will end with its box
	}
}

// start announces that the command is about to be started: from now on, signals are for it.
func (w *signalWatch) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.starting = true
}

// forwardTo has signals delivered from now on, beginning with the one that came while the
// command was being started, if any.
func (w *signalWatch) forwardTo(deliver func(syscall.Signal) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deliver = deliver
	if w.first != 0 {
		_ = deliver(w.first) // on an error, the command has ended
	}
}

// restart undoes start and forwardTo: the command was not started after all. It returns false if a signal has come
// meanwhile.
func (w *signalWatch) restart() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.starting, w.deliver = false, nil
	return w.first == 0
}

// received returns the first signal, or 0.
func (w *signalWatch) received() syscall.Signal {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.first
}

// stop ends the watch and waits for its goroutine. Signals have their usual effect again.
func (w *signalWatch) stop() {
	w.undo()
	close(w.quit)
	<-w.done
	w.cancel()
}

// stoppedBy is the error of a command that signal sig has ended.
func stoppedBy(sig syscall.Signal) error {
	return &statusError{128 + int(sig), fmt.Errorf("stopped by %s", signalName(sig))}
}

func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return sig.String()
}
