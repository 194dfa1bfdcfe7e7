package cli

import (
	"fmt"
	"syscall"

	"github.com/boxd/boxd/internal/sigwatch"
)

// watchSignals starts watching; the caller calls Stop.
func (a *App) watchSignals() *sigwatch.Watch { return sigwatch.New(a.Signals) }

// stoppedBy is the error of a command that signal sig has ended.
func stoppedBy(sig syscall.Signal) error {
	return &statusError{128 + int(sig), fmt.Errorf("stopped by %s", signalName(sig))}
}

func signalName(sig syscall.Signal) string { return sigwatch.Name(sig) }
