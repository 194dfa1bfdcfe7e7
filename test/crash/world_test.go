package crash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/relay"
	"github.com/boxd/boxd/test/daemon"
)

// chatter writes numbered lines to stdout and stderr for ever.
const chatter = `
import os, time
n = 0
while True:
    lines = b"".join(b"%d\n" % i for i in range(n, n + 300))
    n += 300
    os.write(1, lines)
    os.write(2, lines)
    time.sleep(0.003)
`

// monologue is chatter with a terminal, whose two outputs are one.
const monologue = `
import os, time
n = 0
while True:
    os.write(1, b"".join(b"%d\n" % i for i in range(n, n + 50)))
    n += 50
    time.sleep(0.005)
`

// world is everything that goes on while processes are killed.
type world struct {
	t      *testing.T
	daemon *daemon.Daemon
	client *client.Client
	ctx    context.Context

	stop      chan struct{} // closed when the actors shall end
	actors    sync.WaitGroup
	mu        sync.Mutex
	failed    error
	phase     atomic.Int64 // odd while the daemon is dead; changes cut off requests under way
	execs     atomic.Int64
	cut       atomic.Int64
	bytes     atomic.Int64
	churned   atomic.Int64
	kills     int    // processes that got SIGKILL
	books     *books // of the client's tenant
	ratcheted atomic.Int64
}

func (w *world) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed == nil {
		w.failed = fmt.Errorf(format, args...)
	}
}

func (w *world) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

func (w *world) act(f func()) { w.actors.Go(f) }

func (w *world) stopping() bool {
	select {
	case <-w.stop:
		return true
	default:
		return false
	}
}

// forgiven reports whether a client may see err because the daemon was killed: its connection ended, or
// could not be made. It never forgives an answer of the daemon, or an error while nothing was killed.
func (w *world) forgiven(err error, phaseBefore int64) bool {
	var answer *client.Error
	if errors.As(err, &answer) {
		return false
	}
	w.cut.Add(1)
	return w.phase.Load() != phaseBefore || phaseBefore%2 == 1
}

// follow reads a managed process to the end of the test.
func (w *world) follow(session, process string, write bool, tty bool) *relay.Attachment {
	a, err := w.client.Attach(w.ctx, session, process, client.AttachOptions{Write: write})
	if err != nil {
		w.t.Fatalf("attaching to %s of %s: %v", process, session, err)
	}
	w.act(func() {
		streams := map[relay.Stream]*lines{}
		for {
			e, err := a.Recv()
			if err != nil {
				if !w.stopping() {
					w.fail("relay of %s in %s ended: %w", process, session, err)
				}
				return
			}
			switch e := e.(type) {
			case relay.Data:
				if streams[e.Stream] == nil {
					streams[e.Stream] = &lines{crlf: tty}
				}
				l := streams[e.Stream]
				if e.Offset != l.bytes {
					w.fail("relay of %s in %s: stream %v goes on at %d, was at %d", process, session, e.Stream, e.Offset, l.bytes)
				}
				if err := l.add(e.Bytes); err != nil {
					w.fail("relay of %s in %s: stream %v: %w", process, session, e.Stream, err)
					return
				}
				w.bytes.Add(int64(len(e.Bytes)))
			case relay.Gap:
				w.fail("relay of %s in %s: stream %v lost bytes %d to %d", process, session, e.Stream, e.From, e.To)
			case relay.StdinLost:
				w.fail("relay of %s in %s: %d bytes of stdin lost", process, session, e.Bytes)
			case relay.Exited:
				if !w.stopping() {
					w.fail("%s in %s ended: %+v", process, session, e.Exit)
				}
			}
		}
	})
	return a
}

// talk sends numbered lines to a process that returns them.
func (w *world) talk(a *relay.Attachment, name string) {
	w.act(func() {
		for n := 0; !w.stopping(); n++ {
			if _, err := fmt.Fprintf(a, "%d\n", n); err != nil {
				if !w.stopping() {
					w.fail("writing to %s: %w", name, err)
				}
				return
			}
			if n%64 == 0 {
				pause(w.stop, time.Millisecond)
			}
		}
	})
}

// pause is how long an actor that makes load does nothing; nothing is awaited.
func pause(stop <-chan struct{}, d time.Duration) {
	select {
	case <-stop:
	case <-time.After(d):
	}
}

// exec runs commands one after the other; each says what its status must be.
func (w *world) exec(session string, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	w.act(func() {
		for !w.stopping() {
			mark := w.books.ask(session)
			code := random.IntN(256)
			before := w.phase.Load()
			r, err := w.client.Exec(w.ctx, session, apitypes.ExecRequest{
				Argv: []string{"sh", "-c", fmt.Sprintf("echo out %d; echo err %d >&2; test -e /tmp/mark || exit 99; exit %d", code, code, code), mark},
			})
			if err != nil {
				if !w.forgiven(err, before) {
					w.fail("exec in %s: %w", session, err)
					return
				}
				pause(w.stop, 5*time.Millisecond)
				continue
			}
			want := fmt.Sprintf("out %d\n", code)
			if r.ExitCode == nil || *r.ExitCode != code || r.Verdict != "exited" || string(r.Out()) != want || r.Recreated {
				w.fail("exec in %s: %s, want exit code %d and %q", session, describe(r), code, want)
				return
			}
			w.books.told(mark, r)
			w.execs.Add(1)
		}
	})
}

func describe(r *apitypes.ExecResult) string {
	code := "none"
	if r.ExitCode != nil {
		code = fmt.Sprint(*r.ExitCode)
	}
	return fmt.Sprintf("exit code %s, verdict %q, signal %q, stdout %q, stderr %q, recreated %v", code, r.Verdict, r.Signal, r.Out(), r.Err(), r.Recreated)
}

// churn makes and removes sessions.
func (w *world) churn(name string) {
	w.act(func() {
		for i := 0; !w.stopping(); i++ {
			id := fmt.Sprintf("%s-%d", name, i)
			w.again(func() error {
				_, err := w.client.Ensure(w.ctx, apitypes.SessionRequest{ID: id})
				return err
			})
			w.again(func() error {
				err := w.client.Remove(w.ctx, id)
				if client.IsCode(err, apitypes.CodeSessionNotFound) {
					return nil // the one before this was carried out
				}
				return err
			})
			w.churned.Add(1)
		}
	})
}

// secret is a sensitive volume.
const secret = "secret"

// ratchet makes sessions that get a sensitive volume while they live. Whatever became of that
// request, a box that has the volume belongs to a sensitive session.
func (w *world) ratchet(name string) {
	w.act(func() {
		for i := 0; !w.stopping(); i++ {
			id := fmt.Sprintf("%s-%d", name, i)
			w.again(func() error {
				_, err := w.client.Ensure(w.ctx, apitypes.SessionRequest{ID: id})
				return err
			})
			before := w.phase.Load()
			updated, err := w.client.Update(w.ctx, id, apitypes.SessionUpdate{AttachVolumes: []apitypes.SessionVolume{{Name: secret, Target: "/secret", ReadOnly: true}}})
			if err != nil && !w.forgiven(err, before) {
				w.fail("attaching to %s: %w", id, err)
				return
			}
			if err == nil && updated.Sensitive == nil {
				w.fail("session %s has got a sensitive volume and is not sensitive", id)
				return
			}
			var has *apitypes.ExecResult
			var s apitypes.Session
			w.again(func() error {
				mark := w.books.ask(id)
				r, err := w.client.Exec(w.ctx, id, apitypes.ExecRequest{Argv: []string{"sh", "-c", "grep -q ' /secret ' /proc/self/mountinfo", mark}})
				if err == nil {
					w.books.told(mark, r)
				}
				has = r
				return err
			})
			w.again(func() (err error) {
				s, err = w.client.Session(w.ctx, id)
				return err
			})
			switch {
			case w.ctx.Err() != nil:
				return
			case has.Status == 0 && s.Sensitive == nil:
				w.fail("the box of session %s has a sensitive volume, and the session is not sensitive", id)
				return
			case err == nil && s.Sensitive == nil:
				w.fail("session %s is not sensitive any more", id)
				return
			}
			w.again(func() error {
				err := w.client.Remove(w.ctx, id)
				if client.IsCode(err, apitypes.CodeSessionNotFound) {
					return nil // the one before this was carried out
				}
				return err
			})
			w.ratcheted.Add(1)
		}
	})
}

// again repeats an idempotent request until the daemon has answered it.
func (w *world) again(request func() error) {
	for {
		before := w.phase.Load()
		err := request()
		if err == nil {
			return
		}
		if !w.forgiven(err, before) {
			w.fail("request: %w", err)
			return
		}
		if w.ctx.Err() != nil {
			return
		}
		pause(w.stop, 5*time.Millisecond)
	}
}

var _ io.Writer = (*relay.Attachment)(nil)
