package cli

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/relay"
	"github.com/spf13/cobra"
)

type attachFlags struct {
	remoteFlags
	observe, takeOver, noStdin bool
	wait                       bool
	sigProxy                   bool
	since                      relay.Position
	detachKeys                 []byte
	giveUp                     time.Duration

	connected bool // a connection was made
	raw       bool // the terminal is raw, and needs a carriage return for each line
	lost      bool // the user knows that the connection is lost; used by Recv's goroutine only
}

func (a *App) newAttach() *cobra.Command {
	f := attachFlags{detachKeys: []byte{'p' & 0x1f, 'q' & 0x1f}}
	cmd := &cobra.Command{
		Use:   "attach SESSION PROCESS [flags]",
		Short: "Connect to stdin, stdout and stderr of a managed process",
		Long: `Connect to stdin, stdout and stderr of a managed process.

Bytes are passed unchanged in both directions, and the end of stdin closes the stdin
of the process, so a server that speaks over its stdio works through attach. If both
the process and boxd have a terminal, every key goes to the process, except that the
detach keys, ^P ^Q, end attach and leave the process running.

When the connection is lost, or the daemon restarts, attach reconnects as soon as it can,
and no byte is lost or repeated; --give-up limits how long it tries. With --wait, it
also waits for a daemon that is not up yet. Output starts with the oldest byte that is
kept, or at --since.

Exit status: that of the process, as for boxd run; 0 after the detach keys.
SIGINT, SIGTERM and SIGQUIT are forwarded to the process, and a second one detaches.
SIGHUP always detaches, and so does any of them while there is no connection. One
client writes; any number watch with --observe.`,
		Example: `  boxd attach lab shell
  boxd attach --observe lab server
  boxd attach --since end --take-over lab server`,
		Args: exactly("SESSION", "PROCESS"),
		RunE: func(_ *cobra.Command, args []string) error { return a.attach(&f, args[0], args[1]) },

		ValidArgsFunction: a.completeNames(&f.remoteFlags, listSessions, listProcesses),
	}
	fs := cmd.Flags()
	fs.BoolVar(&f.observe, "observe", false, "watch only: forward neither stdin nor signals")
	fs.BoolVar(&f.takeOver, "take-over", false, "replace the client that writes")
	fs.BoolVar(&f.noStdin, "no-stdin", false, "do not read stdin; the stdin of the process stays open")
	fs.BoolVar(&f.sigProxy, "sig-proxy", true, "forward signals to the process")
	fs.Var(sinceValue(&f.since), "since", "start stdout at `OFFSET` in bytes, \"oldest\" or \"end\"")
	fs.Var(keysValue(&f.detachKeys), "detach-keys", "`KEYS` that detach from a terminal, such as ctrl-a,d; \"\" for none")
	fs.BoolVar(&f.wait, "wait", false, "wait for the daemon if it is not up")
	fs.Var(durationValue(&f.giveUp, ""), "give-up", "stop trying to connect after `DURATION` (default: never)")
	f.register(cmd)
	completeFlag(cmd, "give-up")
	completeFlag(cmd, "since", "oldest", "end")
	completeFlag(cmd, "detach-keys", "ctrl-p,ctrl-q", "ctrl-a,d")
	return cmd
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
	defer signals.Stop()
	conn, err := c.Attach(signals.Context, session, process, a.attachOptions(f))
	if err != nil {
		if sig := signals.Received(); sig != 0 {
			return stoppedBy(sig)
		}
		return explainAttach(err)
	}
	defer conn.Close()
	f.connected, f.lost = true, false
	return a.relayUntilEnd(f, conn, signals)
}

// noticeLost tells the user that there is no connection, and how to stop waiting for one.
func (a *App) noticeLost(f *attachFlags, err error) {
	leave := "SIGINT ends this"
	if f.raw && len(f.detachKeys) > 0 {
		leave = "the detach keys end this" // ^C is a key like any other
	}
	if f.connected {
		a.notice(f, "connection lost, trying again; %s", leave)
	} else {
		a.notice(f, "%s; trying again until the daemon answers; %s", oneline.Error(err), leave)
	}
}

func (a *App) attachOptions(f *attachFlags) client.AttachOptions {
	o := client.AttachOptions{
		Write: !f.observe, TakeOver: f.takeOver, Await: f.wait, GiveUp: f.giveUp,
		Since: relay.Since{Stdout: f.since},
		Lost: func(err error) {
			if !f.lost {
				a.noticeLost(f, err)
			}
			f.lost = true
		},
	}
	if f.since.Kind == relay.End {
		o.Since.Stderr = f.since
	}
	return o
}

// explainAttach adds to err what the user can do about it.
func explainAttach(err error) error {
	if client.IsCode(err, apitypes.CodeWriterTaken) {
		return fmt.Errorf("%w: --observe only watches, --take-over replaces that client", err)
	}
	return explainRemote(err)
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
