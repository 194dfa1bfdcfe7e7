package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

// ServeStdio connects one client, which speaks on in and out, with a process of the server called name,
// in a box of its own. It returns when in ends, with nil, when ctx does, or when the process ends, with a
// *Failure. The box is removed then. Reading in is not interrupted: the caller closes it.
func (g *Gateway) ServeStdio(ctx context.Context, name string, who Caller, in io.Reader, out io.Writer) error {
	s := g.servers[name]
	line := (&lineWriter{w: out}).write
	t := &session{id: newID(), s: s, tenant: who.Tenant, owner: who.owner()}
	t.host = g.newHost(s, place{box: boxOf(s, t.id), process: processID, owner: t.owner, unasked: func(m *message, _ bool) bool { return line(m.encode()) == nil }})
	defer t.host.end(false)
	p, err := t.host.use(ctx, who, false)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var answering sync.WaitGroup
	defer answering.Wait()
	defer cancel(nil)
	go func() { // ends with the process, which end removes
		<-p.done
		cancel(p.lost())
	}()
	input := readLines(ctx, in, line)
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
			err = line(errorResponse(nil, rpcError{codeInvalidRequest, err.Error(), nil}).encode())
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

// lineWriter writes messages, each as a line.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lineWriter) write(b []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.w.Write(append(b, '\n'))
	return err
}

// readLines returns the lines of in, until it ends or ctx does; then the channel is closed. refuse gets the answer to a line
// that is too long. Reading is not interrupted: the goroutine ends with in.
func readLines(ctx context.Context, in io.Reader, refuse func([]byte) error) <-chan []byte {
	input := make(chan []byte)
	go func() {
		defer close(input)
		var l lines
		buf := make([]byte, 64<<10)
		for {
			n, err := in.Read(buf)
			l.add(buf[:n], func(b []byte) {
				select {
				case input <- append([]byte{}, b...):
				case <-ctx.Done():
				}
			}, func() {
				_ = refuse(errorResponse(nil, rpcError{codeInvalidRequest, fmt.Sprintf("a message must have at most %d bytes", maxMessage), nil}).encode())
			})
			if err != nil || ctx.Err() != nil {
				return
			}
		}
	}()
	return input
}
