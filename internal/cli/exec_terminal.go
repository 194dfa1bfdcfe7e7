package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/spf13/cobra"
)

// A command at a terminal is a managed process that boxd exec -t attaches to and removes
// at its end.

const (
	// terminalGiveUp bounds how long a lost connection is tried again: there are no detach
	// keys to leave with.
	terminalGiveUp = 30 * time.Second
	// terminalRemoval bounds the removal of the process, or of a session of boxd shell.
	terminalRemoval = 10 * time.Second
)

// notAtTerminal are flags of boxd exec that mean nothing for a command at a terminal.
var notAtTerminal = []string{"json", "timeout", "grace", "output-limit", "keep-background", "receipt"}

// execAtTerminal is boxd exec -t.
func (a *App) execAtTerminal(cmd *cobra.Command, f *execFlags, session string, command []string) error {
	for _, name := range notAtTerminal {
		if cmd.Flags().Changed(name) {
			return a.execFailed(f, &engine.FieldError{Field: "--" + name, Value: "with -t", Rule: "cannot be used together: at a terminal the user ends the command"})
		}
	}
	if f.interactive && asTerminal(a.Stdin) == nil {
		return a.execFailed(f, &engine.FieldError{Field: "-t", Value: "with -i", Rule: "needs a terminal on stdin; leave -t out to pass on a pipe or a file"})
	}
	argv, err := f.argv(command)
	if err != nil {
		return a.execFailed(f, err)
	}
	return a.atTerminal(f, session, !f.interactive, argv)
}

// atTerminal runs the first of commands that exists in the session, at a terminal.
func (a *App) atTerminal(f *execFlags, session string, noStdin bool, commands ...[]string) (err error) {
	request := apitypes.ProcessRequest{ID: randomID("exec"), Cwd: f.workdir, Mkdir: f.mkdir, User: f.user}
	if request.Env, err = a.environ(&f.commandFlags); err != nil {
		return err
	}
	a.giveTerminal(&request)
	c, err := a.newClient(&f.remoteFlags)
	if err != nil {
		return err
	}
	defer c.Close()
	signals := a.watchSignals()
	defer signals.stop()
	for _, request.Argv = range commands {
		err = f.inSession(func(spec *apitypes.SessionSpec) error {
			request.Session = spec
			_, err := c.Start(signals.ctx, session, request)
			return err
		})
		if !client.IsCode(err, apitypes.CodeProgramNotFound) {
			break
		}
	}
	if err == nil {
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), terminalRemoval)
			defer cancel()
			if gone := ignoreGone(c.RemoveProcess(ctx, session, request.ID)); gone != nil {
				a.say("boxd: process %s stays: %s", request.ID, oneline.Error(gone))
			}
		}()
		attach := &attachFlags{remoteFlags: f.remoteFlags, noStdin: noStdin, sigProxy: true, giveUp: terminalGiveUp}
		var conn attachment
		if conn, err = c.Attach(signals.ctx, session, request.ID, a.attachOptions(attach)); err == nil {
			defer conn.Close()
			err = a.relayUntilEnd(attach, conn, signals)
		}
	}
	// What relayUntilEnd says of a signal is for a process that goes on.
	_, ended := errors.AsType[*statusError](err)
	if sig := signals.received(); sig != 0 && err != nil && (!ended || statusOfSignal(err, int(sig))) {
		return &statusError{128 + int(sig), fmt.Errorf("stopped by %s", signalName(sig))}
	}
	if err == nil || ended {
		return err
	}
	return a.execFailed(f, explainRemote(err))
}

// statusOfSignal says that err is the end by signal sig, with words.
func statusOfSignal(err error, sig int) bool {
	known, ok := errors.AsType[*statusError](err)
	return ok && known.status == 128+sig && known.err != nil
}

// randomID is a name that nothing else has.
func randomID(prefix string) string {
	var b [6]byte
	rand.Read(b[:]) // never fails, crypto/rand
	return prefix + "-" + hex.EncodeToString(b[:])
}
