package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/fdkind"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// A client on the Unix socket can pass the descriptors of the command with its request:
//
//	client: POST /v1/run, with Upgrade: boxd-run
//	server: 101 Switching Protocols, or a problem: the run is refused
//	client: one byte with the descriptors stdin, stdout and stderr, or only stdout and stderr
//	client: a line of JSON, apitypes.RunSignal, for each signal
//	server: a line of JSON, apitypes.RunEnd, and the end of the connection
//
// So the command gets the same pipes as from boxd run without a daemon, and no byte passes through the daemon. Nothing
// is made before the descriptors have come: a client that gives up before it sends them knows that
// nothing has run. The end of the connection ends the command.

// descriptorTime is how long a client may take to pass its descriptors.
const descriptorTime = 5 * time.Second

// maxRunSignal bounds a line of a client.
const maxRunSignal = 4 << 10

// maxAccepts bounds the runs of one tenant, less an eighth as all places of a share, whose descriptors are being
// accepted: a descriptor of a FUSE file system can make fstat(2) and close(2) wait for its server for ever.
const maxAccepts = 256

// runOnce runs one command in a box of its own.
func (c *call) runOnce() error {
	var q apitypes.RunRequest
	if err := c.decode(&q); err != nil {
		return err
	}
	tenant, err := c.oneTenant()
	if err != nil {
		return err
	}
	e, err := execOf(&apitypes.ExecRequest{Argv: q.Argv, Shell: q.Shell, Env: q.Env, Cwd: q.Cwd, Mkdir: q.Mkdir,
		Stdin: q.Stdin, StdinBase64: q.StdinBase64, Timeout: q.Timeout, Grace: q.Grace, OutputLimit: q.OutputLimit})
	if err != nil {
		return err
	}
	explain := func(err error) error {
		if box, ok := err.(*session.BoxError); ok {
			return inBox(box.Err)
		}
		return commandError(err, q.Argv)
	}
	request := policy.Request{Wishes: q.Box}
	if strings.EqualFold(c.r.Header.Get("Upgrade"), apitypes.RunProtocol) {
		return c.runWithDescriptors(tenant, request, e, explain)
	}
	return c.run(tenant, nil, e, func(ctx context.Context, e session.Exec) (session.ExecResult, error) {
		return c.s.opt.Sessions.Run(ctx, c.caller(), tenant, request, e)
	}, explain)
}

// inBox names a refused setting of the box as in the request.
func inBox(err error) error {
	switch bad := err.(type) {
	case *engine.FieldError:
		return &engine.FieldError{Field: "box." + bad.Field, Value: bad.Value, Rule: bad.Rule}
	case *policy.DeniedError:
		return &policy.DeniedError{Field: "box." + bad.Field, Value: bad.Value, Rule: bad.Rule}
	}
	return err
}

// runWithDescriptors is runOnce for a client that passes descriptors.
func (c *call) runWithDescriptors(tenant string, r policy.Request, e session.Exec, explain func(error) error) error {
	info, _ := c.r.Context().Value(connKey{}).(*connInfo)
	if info == nil || !info.unix || !c.r.ProtoAtLeast(1, 1) {
		return refuse(apitypes.CodeInvalid, "Upgrade", "Upgrade %s: only a connection to the daemon's Unix socket can pass descriptors", apitypes.RunProtocol)
	}
	if e.Stdin != nil {
		return refuse(apitypes.CodeInvalid, "stdin", "stdin: must be absent if descriptors are passed")
	}
	e.NoOutputLimit = true // nothing is kept in this process
	if err := c.s.opt.Sessions.AdmitRun(c.r.Context(), c.caller(), tenant, r, &e); err != nil {
		return explain(err)
	}
	if !c.s.beginRun() {
		return session.ErrClosed
	}
	defer c.s.runs.Done()
	if !c.s.accepts.takePlace(tenant) {
		return refuse(apitypes.CodeTooManyConnections, "", "the descriptors of %d runs of this tenant are being accepted: wait for one of them", c.s.accepts.most)
	}
	accepted := sync.OnceFunc(func() { c.s.accepts.freePlace(tenant) })
	defer accepted()
	conn, rw, err := c.w.Hijack()
	if err != nil {
		return err
	}
	defer conn.Close()
	defer c.s.keepRun(conn)()
	run := &descriptorRun{conn: conn.(*net.UnixConn), accepted: accepted}
	end := func() apitypes.RunEnd {
		if rw.Reader.Buffered() > 0 {
			p := c.problem(refuse(apitypes.CodeInvalid, "Upgrade", "Upgrade %s: bytes came before the answer", apitypes.RunProtocol))
			return apitypes.RunEnd{Error: &p}
		}
		result, err := run.do(c, func(ctx context.Context) (session.ExecResult, error) {
			return c.s.opt.Sessions.Run(ctx, c.caller(), tenant, r, e)
		}, &e)
		if err != nil {
			p := c.problem(explain(err))
			return apitypes.RunEnd{Error: &p, Started: run.started || errors.Is(err, engine.ErrMayHaveRun)}
		}
		return apitypes.RunEnd{Result: result}
	}()
	line, err := json.Marshal(&end)
	if err != nil {
		return err
	}
	conn.SetWriteDeadline(time.Now().Add(stall))
	conn.Write(append(line, '\n')) // fails only if the client has gone
	return nil
}

// beginRun counts a run whose connection net/http does not know of any more, unless the server shuts down.
func (s *Server) beginRun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams.Err() != nil {
		return false
	}
	s.runs.Add(1)
	return true
}

// drainRuns waits for the runs. When ctx ends, it cancels them and waits once more; then it closes the connections of
// those that are left.
func (s *Server) drainRuns(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.runs.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
	}
	s.cancel()
	select {
	case <-ended:
		return nil
	case <-time.After(lastWait):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.runConns {
		conn.Close()
	}
	return fmt.Errorf("%d runs with descriptors of their clients have not ended within %s: their connections are closed", len(s.runConns), lastWait)
}

// keepRun notes the connection of a run for drainRuns, until the function that it returns is called.
func (s *Server) keepRun(conn net.Conn) (forget func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runConns[conn] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.runConns, conn)
	}
}

// descriptorRun is a run whose client passes descriptors.
type descriptorRun struct {
	conn     *net.UnixConn
	accepted func() // is called once nothing of its descriptors can wait for a client's file system
	started  bool   // the program runs, or has run

	mu       sync.Mutex
	process  engine.Process // nil before it runs
	early    []syscall.Signal
	canceled bool // by the client
}

// do accepts the client's descriptors for e and calls exec, which runs it.
func (d *descriptorRun) do(c *call, exec func(context.Context) (session.ExecResult, error), e *session.Exec) (*apitypes.ExecResult, error) {
	d.conn.SetDeadline(time.Now().Add(descriptorTime))
	if _, err := fmt.Fprintf(d.conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s: %s\r\n\r\n", apitypes.RunProtocol, RequestHeader, c.id); err != nil {
		return nil, err
	}
	files, err := linux.ReceiveFDs(d.conn, 3)
	if err != nil {
		return nil, &refusal{code: apitypes.CodeInvalid, field: "Upgrade", detail: "Upgrade " + apitypes.RunProtocol + ": " + err.Error(), err: err}
	}
	defer linux.CloseAll(files)
	d.conn.SetDeadline(time.Time{})
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	carried, err := take(files, e)
	defer linux.CloseAll(carried)
	if err != nil {
		return nil, err
	}
	d.accepted()
	e.Interrupt = func() {
		for _, f := range carried {
			f.SetWriteDeadline(time.Unix(1, 0)) // or a reader that has stopped would hold the command
		}
	}
	e.Started = func(p engine.Process) { d.start(p) }
	listened := make(chan struct{})
	go func() {
		defer close(listened)
		d.listen(cancel)
	}()
	began := time.Now()
	res, err := exec(ctx)
	d.conn.SetReadDeadline(time.Unix(1, 0))
	<-listened
	if err == nil && res.Verdict == engine.Canceled && !d.canceled {
		err = fmt.Errorf("the command was ended by the daemon, which is stopping, or because its session was removed: %w", session.ErrState)
	}
	if err != nil {
		return nil, err
	}
	result := resultOf(&res, time.Since(began), &outputs{})
	return &result, nil
}

// take makes files the streams of e. Where this process writes itself, because it counts the bytes, it does so through
// files of its own, which it returns, also beside an error: the client can make its own open file description
// block, and must not find it changed.
func take(files []*os.File, e *session.Exec) (carried []*os.File, err error) {
	if len(files) == 1 {
		return nil, refuse(apitypes.CodeInvalid, "Upgrade", "Upgrade %s: must pass two or three descriptors, not one", apitypes.RunProtocol)
	}
	for i, f := range files {
		n := 3 - len(files) + i
		if !fdkind.IsPassable(f, n) || fdkind.IsFUSE(f) {
			return nil, refuse(apitypes.CodeInvalid, "Upgrade", "descriptor %d: must be a pipe or /dev/null, or for 0 a file opened for reading only, not of a FUSE file system", n)
		}
	}
	if len(files) == 3 {
		e.Stdin = files[0]
	}
	out := files[len(files)-2:]
	if e.OutputLimit == 0 {
		e.Stdout, e.Stderr, e.Unseen = out[0], out[1], true
		return nil, nil
	}
	for i, w := range []*io.Writer{&e.Stdout, &e.Stderr} {
		if fdkind.IsNull(out[i]) {
			*w = io.Discard
			continue
		}
		own, err := linux.ReopenPipe(out[i])
		if err != nil {
			return carried, &refusal{code: apitypes.CodeInvalid, field: "output_limit", err: err,
				detail: fmt.Sprintf("output_limit: descriptor %d must be /dev/null or a pipe that the daemon can open for writing: %v", i+1, err)}
		}
		carried = append(carried, own)
		*w = onlyWriter{own}
	}
	for _, f := range out {
		f.Close() // or the reader would find no end before the command's
	}
	return carried, nil
}

// onlyWriter hides that a writer is a file, which would be passed to the command itself, so that nobody could
// count the bytes.
type onlyWriter struct{ io.Writer }

// start notes that the program runs, and delivers the signals that came before.
func (d *descriptorRun) start(p engine.Process) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.started, d.process = true, p
	for _, sig := range d.early {
		_ = p.Signal(sig) // on an error, the command has ended
	}
}

// listen does what the client says, until it has nothing more to say: then it has gone, and cancel ends the
// command.
func (d *descriptorRun) listen(cancel context.CancelFunc) {
	defer cancel()
	lines := bufio.NewScanner(d.conn)
	lines.Buffer(nil, maxRunSignal)
	for lines.Scan() {
		var say apitypes.RunSignal
		if json.Unmarshal(lines.Bytes(), &say) != nil {
			return
		}
		d.mu.Lock()
		switch sig := syscall.Signal(say.Signal); {
		case say.Cancel:
			d.canceled = true
			cancel()
		case sig <= 0 || sig > 64:
		case d.process == nil && len(d.early) < 64:
			d.early = append(d.early, sig)
		case d.process != nil:
			_ = d.process.Signal(sig) // on an error, the command has ended
		}
		d.mu.Unlock()
	}
}
