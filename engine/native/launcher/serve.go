package launcher

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/netns"
	"github.com/boxd/boxd/rootfs"
	"golang.org/x/sys/unix"
)

// answer carries out one request and replies. It closes the descriptors of the reply, of
// which the kernel has made copies.
func (l *Launcher) answer(w *work, frame *wire.Frame) {
	r := &request{Frame: frame, work: w}
	defer r.done()
	reply, files, err := l.handle(r)
	defer linux.CloseAll(files)
	if frame.ID == 0 {
		return // a notice, which has no reply
	}
	answer := rpc.Reply{Body: reply}
	if err != nil {
		answer = rpc.Reply{Error: rpc.NewError(err)}
		if u, ok := reply.(rpc.Updated); ok {
			answer.Body = u
		}
	}
	body, err := json.Marshal(answer)
	if err != nil {
		body, _ = json.Marshal(rpc.Reply{Error: rpc.NewError(err)})
	}
	if err := w.conn.Send(rpc.TypeReply, frame.ID, body, files...); err != nil {
		l.undelivered(frame.Type, reply)
		// If the client is gone, serveClient ends. If not, it must not wait forever.
		body, _ = json.Marshal(rpc.Reply{Error: rpc.NewError(err)})
		_ = w.conn.Send(rpc.TypeReply, frame.ID, body)
	}
}

// request is a frame from the client. Its box, if it names one, is not destroyed until
// the request has been answered: the descriptors of the answer may belong to the box.
type request struct {
	*wire.Frame
	box  *box
	work *work
}

func (r *request) done() {
	if r.Type != rpc.TypeCreate { // a create may continue after its answer
		r.work.end()
	}
	if r.box != nil {
		r.box.leave()
	}
}

func (l *Launcher) handle(r *request) (reply any, files []*os.File, err error) {
	switch r.Type {
	case rpc.TypeCreate:
		return l.handleCreate(r.work, r.Body)
	case rpc.TypeRemove:
		return nil, nil, l.handleRemove(r.Body)
	case rpc.TypeUpdate:
		return onBox(l, r, func(m rpc.Update) string { return m.ID }, l.handleUpdate)
	case rpc.TypeSlots:
		return onBox(l, r, func(m rpc.Slots) string { return m.ID }, l.handleSlots)
	case rpc.TypeKill:
		return onBox(l, r, func(m rpc.Kill) string { return m.ID }, (*box).handleKill)
	case rpc.TypeKeep:
		return onBox(l, r, func(m rpc.Keep) string { return m.ID }, (*box).handleKeep)
	case rpc.TypePTY:
		return onBox(l, r, func(m rpc.PTY) string { return m.ID }, (*box).handlePTY)
	case rpc.TypeOutside:
		return onBox(l, r, func(m rpc.Outside) string { return m.ID }, (*box).handleOutside)
	case rpc.TypeDiag:
		return onBox(l, r, func(m rpc.Box) string { return m.ID }, (*box).handleDiag)
	case rpc.TypeSockets:
		return onBox(l, r, func(m rpc.Sockets) string { return m.ID }, (*box).handleSockets)
	case rpc.TypePause:
		return onBox(l, r, func(m rpc.Pause) string { return m.ID }, (*box).handlePause)
	case rpc.TypeReclaim:
		return onBox(l, r, func(m rpc.Reclaim) string { return m.ID }, l.handleReclaim)
	case rpc.TypeConnect:
		return onBox(l, r, func(m rpc.Connect) string { return m.ID }, (*box).handleConnect)
	case rpc.TypeEngines:
		reply, err = l.handleEngines(r.Body)
		return reply, nil, err
	case rpc.TypePool:
		return l.pool.state(), nil, nil
	case rpc.TypeWhere:
		return l.handleWhere(r)
	case rpc.TypeMakeLayer, rpc.TypePublishLayer, rpc.TypeAbandonLayer, rpc.TypeRemoveLayer, rpc.TypeLayers:
		reply, err = l.handleLayers(r)
		return reply, nil, err
	}
	if l.service != nil {
		return l.handleService(r)
	}
	return nil, nil, fmt.Errorf("request of type %d: %w", r.Type, wire.ErrProtocol)
}

func decode(body []byte, m any) error {
	if err := json.Unmarshal(body, m); err != nil {
		return fmt.Errorf("decoding request: %w", err)
	}
	return nil
}

// onBox decodes a request, enters the box that it names, and carries the request out.
func onBox[M any](l *Launcher, r *request, id func(M) string, handle func(*box, M) (any, []*os.File, error)) (any, []*os.File, error) {
	var m M
	if err := decode(r.Body, &m); err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	b := l.boxes[id(m)]
	l.mu.Unlock()
	if b == nil || !b.enter() {
		return nil, nil, fmt.Errorf("box %s: %w", spec.Quote(id(m)), engine.ErrBoxLost)
	}
	r.box = b
	return handle(b, m)
}

func (l *Launcher) handleUpdate(b *box, m rpc.Update) (any, []*os.File, error) {
	if isGVisor(b.spec) && len(m.Change.Attach)+len(m.Change.Detach) > 0 {
		return rpc.Updated{}, nil, fmt.Errorf("changing the mounts of a running box with isolation %q, whose kernel takes mounts only at its start: %w", b.spec.Isolation, engine.ErrUnenforceable)
	}
	detached, err := l.update(b, m.Change, m.Again)
	if err != nil {
		return rpc.Updated{Detached: detached}, nil, err
	}
	volumes, files := b.openLimited(maxVolumes, func(at string) bool {
		return slices.ContainsFunc(m.Change.Attach, func(m engine.Mount) bool { return m.Target == at })
	})
	return rpc.Updated{Volumes: volumes}, files, nil
}

// handleCreate answers when the box is built, or when its create is refused because it hangs
// or because its client has given up. A refused create continues in the background until
// everything that it made is removed.
func (l *Launcher) handleCreate(w *work, body []byte) (any, []*os.File, error) {
	var m rpc.Create
	if err := decode(body, &m); err != nil {
		w.end()
		return nil, nil, err
	}
	if m.Spec.ID == "" {
		m.Spec.ID = "box-" + strings.ToLower(rand.Text())
	}
	w.makes(m.Spec.ID, false)
	var created rpc.Created
	var files []*os.File
	done := make(chan error, 1)
	go func() {
		defer w.end()
		c, f, err := l.createFor(w, m.Spec)
		if err == nil || w.complete() {
			created, files = c, f
			done <- err
		}
	}()
	select {
	case err := <-done:
		if err != nil {
			return nil, nil, err
		}
		return created, files, nil
	case <-w.refused:
		return nil, nil, w.why
	}
}

// createFor builds a box for a client. It adds the box to l.boxes once w is complete.
func (l *Launcher) createFor(w *work, spec engine.Spec) (rpc.Created, []*os.File, error) {
	b, err := l.newBox(w, spec)
	if err != nil {
		return rpc.Created{}, nil, err
	}
	if err := w.enter(l.creating[w.kind]); err != nil {
		return rpc.Created{}, nil, err
	}
	defer w.leave()
	if b, err = l.obtain(w, b); err != nil {
		return rpc.Created{}, nil, err
	}
	done := w.begin("handing it over", "", nil)
	created, files, err := b.handOver(true)
	done()
	if err == nil && !w.complete() {
		err = w.why
	}
	if err != nil {
		linux.CloseAll(files)
		return created, nil, errors.Join(err, l.abandon(b, err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.boxes[b.id] = b
	return created, files, nil
}

// handOver returns the description and the descriptors of a box for its client.
func (b *box) handOver(withSlot bool) (created rpc.Created, files []*os.File, err error) {
	created = rpc.Created{ID: b.id, PID: b.pid, HostUID: b.lease.Base, Degraded: b.degraded()}
	warm := b.carried
	b.carried = nil
	if warm == nil {
		conn, err := b.connect()
		if err != nil {
			return created, nil, err
		}
		warm = &carried{conn: conn}
	}
	files = append(files, warm.conn)
	pidfd, err := linux.Dup(b.pidfd)
	if err != nil {
		return created, files, err
	}
	files = append(files, pidfd)
	volumes, dirs, err := b.openVolumes()
	created.Volumes, files = volumes, append(files, dirs...)
	if err == nil {
		volumes, dirs = b.openLimited(maxVolumes-len(volumes), func(string) bool { return true })
		created.Volumes, files = append(created.Volumes, volumes...), append(files, dirs...)
	}
	if err != nil || !withSlot {
		return created, files, err
	}
	first := b.first
	b.first = nil
	if first == nil {
		if first, err = b.newSlot(); err != nil {
			return created, files, err
		}
	}
	var slotFiles []*os.File
	created.First, slotFiles = describe(first, nil)
	files = append(files, slotFiles...)
	return created, append(files, warm.describe(&created)...), nil
}

// describe returns the description and the descriptors of a slot for its client. It takes
// the descriptors from the slot, which from then on is used only by its name. procs is nil or the
// slot's cgroup.procs. A slot after CloseBirth has its process.
func describe(s *cgroups.Slot, procs *os.File) (rpc.Slot, []*os.File) {
	m := rpc.Slot{Name: s.Name, Tasks: len(s.Tasks), Procs: procs != nil, Begun: s.Dir == nil}
	var files []*os.File
	if !m.Begun {
		files = append([]*os.File{s.Dir}, s.Tasks...)
	}
	if procs != nil {
		files = append(files, procs)
	}
	for _, f := range s.Stats {
		m.Stats = append(m.Stats, f != nil)
		if f != nil {
			files = append(files, f)
		}
	}
	s.Dir, s.Tasks, s.Stats = nil, nil, nil
	return m, files
}

func (l *Launcher) handleRemove(body []byte) error {
	var m rpc.Box
	if err := decode(body, &m); err != nil {
		return err
	}
	return l.remove(m.ID)
}

// remove removes a box, or refuses its create.
func (l *Launcher) remove(id string) error {
	l.mu.Lock()
	b := l.boxes[id]
	delete(l.boxes, id)
	l.mu.Unlock()
	if b != nil {
		return l.discard(b)
	}
	if w := l.works.creating(id); w != nil {
		w.refuse("its client has given up")
		return nil
	}
	return l.removeAgain(id) // most likely it is removed already
}

func (l *Launcher) handleSlots(b *box, m rpc.Slots) (any, []*os.File, error) {
	if m.Count < 0 || m.Count > rpc.MaxSlots {
		return nil, nil, fmt.Errorf("%d slots: %w", m.Count, wire.ErrProtocol)
	}
	for _, name := range m.Background {
		if err := b.mark(name, ""); err != nil {
			return nil, nil, err
		}
	}
	for _, name := range m.Used {
		l.release(b, name)
	}
	var reply []rpc.Slot
	var files []*os.File
	for range m.Count {
		s, err := b.newSlot()
		var procs *os.File
		if err == nil && m.Procs {
			if procs, err = s.OpenProcs(); err != nil {
				l.release(b, s.Name)
			}
		}
		if err != nil {
			linux.CloseAll(files)
			for _, made := range reply {
				l.release(b, made.Name)
			}
			return nil, nil, err
		}
		fresh, slotFiles := describe(s, procs)
		files = append(files, slotFiles...)
		reply = append(reply, fresh)
	}
	return reply, files, nil
}

// newSlot makes a slot. Its files go to the client with the reply.
func (b *box) newSlot() (*cgroups.Slot, error) {
	s, err := b.group.NewSlot()
	if err != nil {
		return nil, fmt.Errorf("making cgroup of command: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slots[s.Name] = s
	return s, nil
}

func (b *box) slot(name string) (*cgroups.Slot, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.slots[name]
	if s == nil {
		return nil, fmt.Errorf("command %s of box %q: %w", spec.Quote(name), b.id, engine.ErrBoxLost)
	}
	return s, nil
}

// handleWhere tells a client at which step another of its requests is.
func (l *Launcher) handleWhere(r *request) (any, []*os.File, error) {
	var m rpc.Where
	if err := decode(r.Body, &m); err != nil {
		return nil, nil, err
	}
	return rpc.At{Text: l.works.at(r.work.conn, m.Request)}, nil, nil
}

// handleConnect opens another connection to the agent.
func (b *box) handleConnect(rpc.Connect) (any, []*os.File, error) {
	conn, err := b.connect()
	if err != nil {
		return nil, nil, b.orLost(err)
	}
	return nil, []*os.File{conn}, nil
}

func (b *box) handleKill(m rpc.Kill) (any, []*os.File, error) {
	s, err := b.slot(m.Slot)
	if err != nil {
		return nil, nil, err
	}
	if m.Signal == int(unix.SIGKILL) {
		return nil, nil, b.killSlot(s)
	}
	return nil, nil, s.Signal(unix.Signal(m.Signal))
}

func (b *box) handleDiag(rpc.Box) (any, []*os.File, error) {
	diag, err := netns.DiagSocket(b.pidfd)
	if err != nil {
		return nil, nil, b.orLost(fmt.Errorf("opening a socket in the network of box %q: %w", b.id, err))
	}
	return nil, []*os.File{diag}, nil
}

func (b *box) handleSockets(m rpc.Sockets) (any, []*os.File, error) {
	// Each count is checked by itself first: their sum could overflow.
	if len(m.Listen) > rpc.MaxSockets || m.IPv4 < 0 || m.IPv4 > rpc.MaxSockets || m.IPv6 < 0 || m.IPv6 > rpc.MaxSockets ||
		len(m.Listen)+m.IPv4+m.IPv6 > rpc.MaxSockets {
		return nil, nil, &engine.FieldError{Field: "sockets", Value: fmt.Sprintf("%d listening, %d and %d", len(m.Listen), m.IPv4, m.IPv6), Rule: fmt.Sprintf("must be at most %d together", rpc.MaxSockets)}
	}
	for _, at := range m.Listen {
		if !at.Addr().Unmap().IsLoopback() || at.Addr().Zone() != "" {
			return nil, nil, &engine.FieldError{Field: "listen", Value: spec.Quote(at.String()), Rule: "must be an address of loopback, such as 127.0.0.1:3128"}
		}
	}
	sockets, err := netns.Sockets(b.pidfd, m.Listen, m.IPv4, m.IPv6)
	if err != nil {
		return nil, nil, b.orLost(fmt.Errorf("opening sockets in the network of box %q: %w", b.id, err))
	}
	return nil, sockets, nil
}

func (b *box) handlePTY(m rpc.PTY) (any, []*os.File, error) {
	if err := m.User.Validate("user"); err != nil {
		return nil, nil, err
	}
	if isGVisor(b.spec) {
		return nil, nil, fmt.Errorf("giving a command a terminal with isolation %q: %w", b.spec.Isolation, engine.ErrUnenforceable)
	}
	master, slave, err := b.openPTY(m)
	if errors.Is(err, rootfs.ErrNoTerminal) {
		err = fmt.Errorf("%w: %w", engine.ErrAtLimit, err)
	}
	if err != nil {
		return nil, nil, err
	}
	return nil, []*os.File{master, slave}, nil
}
