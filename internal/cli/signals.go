package cli

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/boxd/boxd/engine"
	"golang.org/x/sys/unix"
)

// forwarded are the signals by which people and supervisors end a program.
var forwarded = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// signalWatch passes signals on to the command. Before it is started, and with
// the second signal, ctx is cancelled instead, which kills the command.
type signalWatch struct {
	ctx    context.Context
	cancel context.CancelFunc
	in     <-chan os.Signal
	quit   chan struct{}
	done   chan struct{}
	undo   func()

	mu       sync.Mutex
	starting bool           // the command may run already
	process  engine.Process // nil until it is known to run
	first    syscall.Signal // 0 until one was received
}

// watchSignals starts watching; the caller calls stop.
func (a *App) watchSignals() *signalWatch {
	w := &signalWatch{in: a.Signals, quit: make(chan struct{}), done: make(chan struct{}), undo: func() {}}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	if w.in == nil {
		w.in, w.undo = notify()
	}
	go w.loop()
	return w
}

// notify subscribes to the forwarded signals, but not to those that are ignored:
// nohup(1) and shells without job control mean that to be inherited.
func notify() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 8)
	var wanted []os.Signal
	for _, sig := range forwarded {
		if !signal.Ignored(sig) {
			wanted = append(wanted, sig)
		}
	}
	if len(wanted) > 0 { // none would mean all
		signal.Notify(ch, wanted...)
	}
	return ch, func() { signal.Stop(ch) }
}

func (w *signalWatch) loop() {
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
}

func (w *signalWatch) handle(sig syscall.Signal) {
	w.mu.Lock()
	process, again := w.process, w.first != 0
	if !again {
		w.first = sig
	}
	waits := w.starting && process == nil && !again // for forwardTo
	w.mu.Unlock()
	if waits {
		return
	}
	if process == nil || again {
		w.cancel()
		return
	}
	// An error means that the command has just ended, or soon will with its box.
	_ = process.Signal(sig)
}

// start says that the command is about to be started: a signal now is for it.
func (w *signalWatch) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.starting = true
}

// forwardTo names the process that gets the signals from now on, and passes on
// one that came while it was started.
func (w *signalWatch) forwardTo(p engine.Process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.process = p
	if w.first != 0 {
		_ = p.Signal(w.first) // an error means that it has ended
	}
}

// received is the first signal that came, 0 if none did.
func (w *signalWatch) received() syscall.Signal {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.first
}

// stop ends the watch and waits for that. Signals have their usual effect again.
func (w *signalWatch) stop() {
	w.undo()
	close(w.quit)
	<-w.done
	w.cancel()
}

func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return sig.String()
}
