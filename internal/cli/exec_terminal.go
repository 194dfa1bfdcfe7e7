package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/spf13/cobra"
)

// A command at a terminal is a managed process. boxd exec -t starts it, attaches to it and
// removes it when it has ended.

const (
	// terminalGiveUp bounds how long boxd tries to reconnect: there are no detach keys to give
	// up with.
	terminalGiveUp = 30 * time.Second
	// terminalRemoval bounds the removal of the process, or of a session of boxd shell.
	terminalRemoval = 10 * time.Second
)

// notAtTerminal lists the flags of boxd exec that mean nothing for a command at a terminal.
var notAtTerminal = []string{"json", "timeout", "grace", "output-limit", "keep-background", "receipt", "explain", "outputs", "outputs-to"}

// execAtTerminal is boxd exec -t.
func (a *App) execAtTerminal(cmd *cobra.Command, f *execFlags, session string, command []string) error {
	for _, name := range notAtTerminal {
		if cmd.Flags().Changed(name) {
			return a.fail(f.json, &engine.FieldError{Field: "--" + name, Value: "with -t", Rule: "cannot be used together: at a terminal the user ends the command"})
		}
	}
	if f.zygote != "" {
		return a.fail(f.json, &engine.FieldError{Field: "--zygote", Value: "with -t", Rule: "cannot be used together: a command at a terminal is always started"})
	}
	if f.interactive && asTerminal(a.Stdin) == nil {
		return a.fail(f.json, &engine.FieldError{Field: "-t", Value: "with -i", Rule: "needs a terminal on stdin; leave -t out to pass on a pipe or a file"})
	}
	argv, err := f.argv(command)
	if err != nil {
		return a.fail(f.json, err)
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
	defer signals.Stop()
	for _, request.Argv = range commands {
		err = f.inSession(func(spec *apitypes.SessionSpec) error {
			request.Session = spec
			_, err := c.Start(signals.Context, session, request)
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
		if conn, err = c.Attach(signals.Context, session, request.ID, a.attachOptions(attach)); err == nil {
			defer conn.Close()
			err = a.relayUntilEnd(attach, conn, signals)
		}
	}
	known, ended := errors.AsType[*statusError](err)
	if sig := signals.Received(); sig != 0 && err != nil {
		// relayUntilEnd says after a signal that the process keeps running. This one does not.
		if !ended || known.status == 128+int(sig) && known.err != nil {
			return stoppedBy(sig)
		}
	}
	if err == nil || ended {
		return err
	}
	return a.fail(f.json, explainRemote(f.remoteFlags.nameFlag(err)))
}

// randomID returns an ID that nothing else has.
func randomID(prefix string) string {
	var b [6]byte
	rand.Read(b[:]) // never fails, crypto/rand
	return prefix + "-" + hex.EncodeToString(b[:])
}
