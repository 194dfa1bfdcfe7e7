package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/rpcline"
	"github.com/boxd/boxd/relay"
)

// askedAge is for how long a request to a client keeps its place at least. People answer some of them.
const askedAge = 10 * time.Minute

// maxPending bounds the requests that one process answers at once.
const maxPending = 1024

// exchange is a request to a server, until its response.
type exchange struct {
	method string
	id     json.RawMessage // as the client wrote it
	token  json.RawMessage // its progress token; nil: none
	owner  any             // of whom: IDs are unique within an owner
	plain  bool            // the client accepts the response only
	// out gets what belongs to the request, and the response at last.
	out *queue
	// finish changes the response before it is sent; nil: it stays as it is.
	finish func(*message) *message
	// outcome says how a call of a tool has ended. It is set before out is closed.
	outcome outcome
}

// process is a server that runs, with its streams.
type process struct {
	s       *Server
	c       *client.Client // of its own, closed by end
	session string         // of the box
	id      string
	att     *relay.Attachment
	in      *queue // to its stdin
	account account
	stderr  tail
	// unasked gets messages of the server that belong to no request. It must not wait. It reports false if
	// the client cannot get it now or, with keep, later.
	unasked func(m *message, keep bool) bool
	// single means that all requests are of one client, which answers requests of the server.
	single bool
	// start is the start of the process, if the client has to initialize it; nil: it has ended before.
	start *attempt

	done chan struct{} // closed after failure was set and all exchanges have ended
	join sync.WaitGroup

	mu      sync.Mutex
	next    int64 // ID of the next request
	pending map[int64]*exchange
	order   []int64              // IDs of pending, oldest first
	asked   map[string]time.Time // by IDs of the server's requests to the client: when they came
	failure *Failure
	hello   json.RawMessage // result of initialize, of the gateway's handshake
	tools   pins
}

// newProcess attaches to a process that runs. since says where its output begins. It takes c over.
func newProcess(ctx context.Context, s *Server, c *client.Client, a account, session, id string, since relay.Since) (*process, error) {
	att, err := c.Attach(ctx, session, id, client.AttachOptions{Write: true, TakeOver: true, Since: since})
	if err != nil {
		return nil, err
	}
	p := &process{s: s, c: c, session: session, id: id, att: att, in: newQueue(a), account: a, done: make(chan struct{}),
		// Numbers are not used again by a gateway that takes the process over from a killed one: what the
		// process then answers to a request of the old one belongs to none.
		next: time.Now().UnixMicro(), pending: map[int64]*exchange{}, asked: map[string]time.Time{}, unasked: func(*message, bool) bool { return true }}
	return p, nil
}

// greeted ends the start of a process with what became of the handshake of its client, and returns f; nil: the server has answered, if only with an error, which may
// be about the client.
func (p *process) greeted(ctx context.Context, f *Failure) *Failure {
	switch {
	case p.start == nil:
	case f == nil:
		p.start.succeed()
	case ctx.Err() != nil:
		p.start.abandon()
	default:
		return p.start.fail(f)
	}
	return f
}

// run starts to serve the streams. unasked and single are set before.
func (p *process) run() {
	p.join.Go(p.receive)
	p.join.Go(func() { // joined by detach, which closes att
		defer p.in.drop()
		for {
			line, ok := p.in.next(p.done)
			if !ok {
				return
			}
			if _, err := p.att.Write(append(line, '\n')); err != nil {
				<-p.done // receive learns why
				return
			}
		}
	})
}

// detach ends the connection to the process, which lives on.
func (p *process) detach() {
	p.att.Close()
	p.join.Wait()
	p.c.Close()
}

// receive reads the streams until the process or the connection ends.
func (p *process) receive() {
	stdout := rpcline.Lines{Max: maxMessage}
	for {
		ev, err := p.att.Recv()
		if err != nil {
			p.fail(p.s.failed(PhaseLost, fmt.Errorf("the connection to its process ended: %w", err)))
			return
		}
		switch ev := ev.(type) {
		case relay.Data:
			if ev.Stream == relay.Stderr {
				p.stderr.add("", ev.Bytes)
				continue
			}
			stdout.Add(ev.Bytes, p.line, func() {
				p.endAll(p.withStderr(p.s.failed(PhaseRun, fmt.Errorf("it wrote a message of more than %d bytes", maxMessage))))
			})
		case relay.Gap:
			if ev.Stream == relay.Stdout { // only after the gateway was away
				stdout.SkipLine()
			}
		case relay.StdinLost:
			p.endAll(p.withStderr(p.s.failed(PhaseRun, errors.New("another client wrote to its input"))))
		case relay.WriterChanged:
			if !ev.Writer {
				p.fail(p.s.failed(PhaseLost, errors.New("another client has taken over its input")))
				return
			}
		case relay.Exited:
			p.fail(p.s.exited(ev.Exit))
			return
		}
	}
}

func (p *process) withStderr(f *Failure) *Failure {
	f.Stderr = p.stderr.last()
	return f
}

// fail ends the process for its users, and all exchanges.
func (p *process) fail(f *Failure) {
	p.withStderr(f)
	p.mu.Lock()
	p.failure = f
	p.mu.Unlock()
	p.endAll(f)
	close(p.done)
}

// endAll answers all requests in progress with f.
func (p *process) endAll(f *Failure) {
	p.mu.Lock()
	all := p.pending
	p.pending, p.order = map[int64]*exchange{}, nil
	p.mu.Unlock()
	for _, x := range all {
		x.outcome = outcome{CallError, "phase " + f.Phase}
		x.out.end(f.response(&message{id: x.id}).encode())
	}
}

// lost returns why the process cannot be used any more, or nil.
func (p *process) lost() *Failure {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure
}

// line handles a line of stdout.
func (p *process) line(b []byte) {
	if len(strings.TrimSpace(string(b[:min(len(b), 64)]))) == 0 {
		return
	}
	m, err := parse(b)
	if errors.Is(err, rpcline.ErrMembers) { // nobody can say for certain which request it answers
		p.endAll(p.withStderr(p.s.failed(PhaseRun, fmt.Errorf("it wrote a message that is refused: %w", err))))
		return
	}
	if err != nil { // a program that prints something, which the client must not see
		p.stderr.add("stdout: ", b[:min(len(b), maxTailLine)])
		return
	}
	switch {
	case m.method == "":
		p.answered(m)
	case m.method == "notifications/progress" && m.id == nil:
		p.progress(m)
	case m.id != nil && !p.single && m.method == "ping":
		_ = p.send(response(m.id, struct{}{})) // a server that reads nothing is told by the next request
	case m.id != nil && !p.single:
		p.refuseServer(m, "the server is shared by several clients, so it cannot ask one of them")
	default:
		if m.id != nil {
			p.mu.Lock()
			if len(p.asked) >= maxPending {
				maps.DeleteFunc(p.asked, func(_ string, came time.Time) bool { return time.Since(came) > askedAge })
			}
			full := len(p.asked) >= maxPending
			if !full {
				p.asked[string(m.id)] = time.Now()
			}
			p.mu.Unlock()
			if full {
				p.refuseServer(m, "too many requests to the client are in progress")
				return
			}
		}
		if m.method == "notifications/tools/list_changed" {
			p.tools.recheck()
		}
		p.related(m)
	}
}

// refuseServer answers a request of the server.
func (p *process) refuseServer(m *message, why string) {
	p.send(errorResponse(m.id, rpcError{codeMethodNotFound, m.method + ": " + why, nil}))
}

// related passes on a message of the server that names no request. In stdio nothing says which one it
// belongs to. A single client gets it with the newest one in progress; of several, one that is the
// only one with a request in progress gets log messages.
func (p *process) related(m *message) {
	p.mu.Lock()
	var x *exchange
	if len(p.order) > 0 && p.single || len(p.order) == 1 && m.method == "notifications/message" {
		x = p.pending[p.order[len(p.order)-1]]
	}
	p.mu.Unlock()
	changed := strings.HasSuffix(m.method, "/list_changed") || m.method == "notifications/resources/updated"
	if x != nil && !x.plain && !changed && x.method != "initialize" && x.out.push(m.encode()) {
		return
	}
	// A client that waits for a response in JSON may open a stream after it, when it is too late to answer.
	keep := m.id == nil || x == nil || !x.plain
	if !p.unasked(m, keep) && m.id != nil {
		p.mu.Lock()
		delete(p.asked, string(m.id))
		p.mu.Unlock()
		p.refuseServer(m, "the client cannot be asked: it has no stream of events open")
	}
}

// progress passes on a progress notification.
func (p *process) progress(m *message) {
	params := object(m.members["params"])
	n, err := strconv.ParseInt(string(params["progressToken"]), 10, 64)
	p.mu.Lock()
	x := p.pending[n]
	p.mu.Unlock()
	if err != nil || x == nil || x.token == nil {
		return // it comes too late, or nobody asked for it
	}
	m.members["params"], _ = replace(m.members["params"], x.token, "progressToken")
	x.out.push(m.encode()) // a client that reads slowly misses some
}

// answered passes on a response.
func (p *process) answered(m *message) {
	n, err := strconv.ParseInt(string(m.id), 10, 64)
	x := p.take(n)
	if err != nil || x == nil {
		return // cancelled, or of a gateway that is gone
	}
	m.members["id"], m.id = x.id, x.id
	if x.finish != nil {
		m = x.finish(m)
	}
	if x.method == "tools/call" {
		x.outcome = answeredCall(m)
	}
	if !x.out.last(m.encode()) { // or the client is gone
		x.outcome = outcome{CallError, "phase " + PhaseRun}
		x.out.end(p.s.failed(PhaseRun, errHeld).response(m).encode())
	}
}

var errHeld = fmt.Errorf("messages that clients have not read yet take all of the memory for them (%d MiB of a tenant, %d MiB of all): read faster, and retry", maxHeldEach>>20, maxHeld>>20)

// take removes a pending exchange, and returns it; nil if there is none.
func (p *process) take(n int64) *exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.pending[n]
	if x == nil {
		return nil
	}
	delete(p.pending, n)
	for i, other := range p.order {
		if other == n {
			p.order = append(p.order[:i], p.order[i+1:]...)
			break
		}
	}
	return x
}

// send writes a message to the process. It does not wait.
func (p *process) send(m *message) error {
	if !p.in.push(m.encode()) {
		if f := p.lost(); f != nil {
			return f
		}
		return p.withStderr(p.s.failed(PhaseRun, errors.New("it does not read its input, or messages that were not read yet take all of the memory for them")))
	}
	return nil
}

// ask sends a request, whose ID and progress token become those of the process. The caller reads x.out,
// and calls cancel if it stops before the response.
func (p *process) ask(m *message, x *exchange) (cancel func(), err error) {
	x.method, x.id, x.out = m.method, m.id, newQueue(p.account)
	p.mu.Lock()
	if p.failure != nil {
		p.mu.Unlock()
		return nil, p.failure
	}
	if len(p.pending) >= maxPending {
		p.mu.Unlock()
		return nil, p.s.failed(PhaseRun, fmt.Errorf("%d requests are in progress", maxPending))
	}
	n := p.next
	p.next++
	number := json.RawMessage(strconv.FormatInt(n, 10))
	params, token := replace(m.members["params"], number, "_meta", "progressToken")
	x.token = token
	p.pending[n] = x
	p.order = append(p.order, n)
	p.mu.Unlock()
	sent := *m
	sent.members = map[string]json.RawMessage{}
	for k, v := range m.members {
		sent.members[k] = v
	}
	sent.members["id"] = number
	if token != nil {
		sent.members["params"] = params
	}
	if err := p.send(&sent); err != nil {
		p.take(n)
		return nil, err
	}
	return func() { p.cancel(n, "the client is gone") }, nil
}

// cancel ends an exchange without a response, and tells the server.
func (p *process) cancel(n int64, reason string) {
	x := p.take(n)
	if x == nil {
		return
	}
	x.outcome = endedEarly
	x.out.end(nil)
	if x.method != "initialize" { // which may not be cancelled
		_ = p.send(request(nil, "notifications/cancelled", map[string]any{"requestId": n, "reason": reason})) // it reads nothing: it learns nothing
	}
}

// cancelled handles a cancellation by a client.
func (p *process) cancelled(owner any, m *message) {
	id := object(m.members["params"])["requestId"]
	p.mu.Lock()
	var n int64
	found := false
	for other, x := range p.pending {
		if x.owner == owner && string(x.id) == string(id) {
			n, found = other, true
		}
	}
	p.mu.Unlock()
	if found {
		p.cancel(n, text(object(m.members["params"])["reason"]))
	}
}

// reply passes a client's response to a request of the server.
func (p *process) reply(m *message) {
	p.mu.Lock()
	_, ok := p.asked[string(m.id)]
	delete(p.asked, string(m.id))
	p.mu.Unlock()
	if ok {
		_ = p.send(m) // a server that reads nothing is waiting for nothing
	}
}

// do sends a request of the gateway itself and waits for the result.
func (p *process) do(ctx context.Context, method string, params any) (json.RawMessage, error) {
	m, err := p.doMessage(ctx, request(json.RawMessage("0"), method, params))
	if err != nil {
		return nil, err
	}
	if m.members["error"] != nil {
		return nil, fmt.Errorf("it answers %s with an error: %s", method, cutText(text(object(m.members["error"])["message"]), maxTailLine))
	}
	return m.members["result"], nil
}

// doMessage sends a request and waits for the response. What belongs to the request otherwise is lost. The
// errors of a process that ends are *Failure.
func (p *process) doMessage(ctx context.Context, m *message) (*message, error) {
	x := &exchange{}
	cancel, err := p.ask(m, x)
	if err != nil {
		return nil, err
	}
	defer x.out.drop()
	for {
		b, ok := x.out.next(ctx.Done())
		if !ok {
			cancel()
			return nil, context.Cause(ctx)
		}
		answer, err := parse(b)
		switch {
		case err != nil:
			return nil, err
		case answer.method != "":
			continue
		}
		if f := p.lost(); f != nil && answer.members["error"] != nil {
			return nil, f
		}
		return answer, nil
	}
}

func cutText(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }
