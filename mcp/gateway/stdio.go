package gateway

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/boxd/boxd/internal/rpcline"
)

// ServeStdio connects one client, which speaks on in and out, with a process of the server called name,
// in a box of its own. It returns when in ends, with nil, when ctx does, or when the process ends, with a
// *Failure. The box is removed then. Reading in is not interrupted: the caller closes it.
func (g *Gateway) ServeStdio(ctx context.Context, name string, who Caller, in io.Reader, out io.Writer) error {
	s := g.servers[name]
	line := (&rpcline.Writer{W: out}).Write
	t := &session{id: newID(), s: s, tenant: who.Tenant, owner: who.owner()}
	t.host = g.newHost(s, place{box: boxOf(s, t.id), process: processID, owner: t.owner, unasked: func(m *message, _ bool) bool { return line(m.encode()) == nil }})
	defer t.host.end(false)
	p, err := t.host.use(ctx, who, false)
	if err != nil {
		return err
	}
	p.start.abandon() // there is no second one
	ctx, cancel := context.WithCancelCause(ctx)
	var answering sync.WaitGroup
	defer answering.Wait()
	defer cancel(nil)
	go func() { // ends with the process, which end removes
		<-p.done
		cancel(p.lost())
	}()
	input := rpcline.Read(ctx, in, maxMessage, line)
	for {
		var b []byte
		open := true
		select {
		case b, open = <-input:
		case <-ctx.Done():
		}
		if f, ended := errors.AsType[*Failure](context.Cause(ctx)); ended {
			answering.Wait() // the answers say so, too
			return f
		}
		if !open || ctx.Err() != nil {
			return nil
		}
		m, err := parse(b)
		switch {
		case err != nil:
			err = line(rpcline.Refusal(err))
		case m.method == "":
			p.reply(m)
		case m.method == "notifications/cancelled" && m.id == nil:
			p.cancelled(t, m)
		case m.id == nil:
			if notifies(m) {
				err = p.send(m)
			}
		default:
			answer := &stream{id: m.id, line: line, plain: true}
			x, stop, failed := g.begin(ctx, p, t, m, false, nil)
			if failed != nil {
				answer.fail(failed)
				continue
			}
			answering.Go(func() {
				answer.copy(ctx, x.out)
				stop()
			})
		}
		if err != nil {
			return err
		}
	}
}
