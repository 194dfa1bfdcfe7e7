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
	"github.com/boxd/boxd/rootfs"
	"golang.org/x/sys/unix"
)

// answer carries out one request and replies. Descriptors in a reply are lent to
// the kernel and closed here.
func (l *Launcher) answer(w *work, frame *wire.Frame) {
	client := w.conn
	r := &request{Frame: frame, work: w}
	defer r.done()
	reply, files, err := l.handle(r)
	defer linux.CloseAll(files)
	if frame.ID == 0 {
		return // told, not asked
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
	if err := client.Send(rpc.TypeReply, frame.ID, body, files...); err != nil {
		l.undelivered(frame.Type, reply)
		// A client that is gone ends serve. One that is not must not wait for ever.
		body, _ = json.Marshal(rpc.Reply{Error: rpc.NewError(err)})
		_ = client.Send(rpc.TypeReply, frame.ID, body)
	}
}

// request is a frame of the client's. It keeps the box that it is about, if any,
// from being taken apart until it has been answered: the descriptors of an answer
// may be the box's.
type request struct {
	*wire.Frame
	box  *box
	work *work
}

func (r *request) done() {
	if r.Type != rpc.TypeCreate { // which may go on
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
		var m rpc.Update
		b, err := l.find(r, &m, func() string { return m.ID })
		if err != nil {
			return nil, nil, err
		}
		detached, err := l.update(b, m.Change, m.Again)
		if err != nil {
			return rpc.Updated{Detached: detached}, nil, err
		}
		volumes, files := b.openLimited(maxVolumes, func(at string) bool {
			return slices.ContainsFunc(m.Change.Attach, func(m engine.Mount) bool { return m.Target == at })
		})
		return rpc.Updated{Volumes: volumes}, files, nil
	case rpc.TypeSlots:
		return l.handleSlots(r)
	case rpc.TypeKill:
		return nil, nil, l.handleKill(r)
	case rpc.TypeKeep:
		return nil, nil, l.handleKeep(r)
	case rpc.TypePTY:
		return l.handlePTY(r)
	case rpc.TypeOutside:
		return l.handleOutside(r)
	case rpc.TypeConnect:
		return l.handleConnect(r)
	case rpc.TypeWhere:
		return l.handleWhere(r)
	}
	if l.service != nil {
		return l.handleService(r)
	}
	return nil, nil, fmt.Errorf("request of type %d: %w", r.Type, wire.ErrProtocol)
}

// find decodes a request into m and enters the box that it is about.
func (l *Launcher) find(r *request, m any, id func() string) (*box, error) {
	if err := json.Unmarshal(r.Body, m); err != nil {
		return nil, fmt.Errorf("decoding request: %w", err)
	}
	l.mu.Lock()
	b := l.boxes[id()]
	l.mu.Unlock()
	if b == nil || !b.enter() {
		return nil, fmt.Errorf("box %s: %w", spec.Quote(id()), engine.ErrBoxLost)
	}
	r.box = b
	return b, nil
}

// handleCreate answers when the box is there, or its create is refused: because it hangs, or
// because its client has given up. Then it goes on beside, until what was made is removed.
func (l *Launcher) handleCreate(w *work, body []byte) (any, []*os.File, error) {
	var m rpc.Create
	if err := json.Unmarshal(body, &m); err != nil {
		w.end()
		return nil, nil, fmt.Errorf("decoding request: %w", err)
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

// createFor builds a box for a client. It is one of the launcher's boxes once w is complete.
func (l *Launcher) createFor(w *work, spec engine.Spec) (rpc.Created, []*os.File, error) {
	if err := w.enter(l.creating); err != nil {
		return rpc.Created{}, nil, err
	}
	defer w.leave()
	b, err := l.create(w, spec)
	if err != nil {
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

// handOver is all that the client gets of a box.
func (b *box) handOver(withSlot bool) (created rpc.Created, files []*os.File, err error) {
	created = rpc.Created{ID: b.id, PID: b.pid, HostUID: b.lease.Base, Degraded: b.degraded()}
	conn, err := b.connect()
	if err != nil {
		return created, nil, err
	}
	files = append(files, conn)
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
	first, err := b.newSlot()
	if err != nil {
		return created, files, err
	}
	var slotFiles []*os.File
	created.First, slotFiles = describe(first)
	return created, append(files, slotFiles...), nil
}

// describe says what a slot is to the client, and with which descriptors: they
// are the caller's from now on, the slot is used by its name only.
func describe(s *cgroups.Slot) (rpc.Slot, []*os.File) {
	m := rpc.Slot{Name: s.Name, Tasks: len(s.Tasks)}
	files := append([]*os.File{s.Dir}, s.Tasks...)
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
	if err := json.Unmarshal(body, &m); err != nil {
		return fmt.Errorf("decoding request: %w", err)
	}
	l.mu.Lock()
	b := l.boxes[m.ID]
	delete(l.boxes, m.ID)
	l.mu.Unlock()
	if b != nil {
		return l.discard(b)
	}
	if w := l.works.creating(m.ID); w != nil {
		w.refuse("its client has given up")
		return nil
	}
	return l.removeAgain(m.ID) // removed already, most likely
}

func (l *Launcher) handleSlots(r *request) (any, []*os.File, error) {
	var m rpc.Slots
	b, err := l.find(r, &m, func() string { return m.ID })
	if err != nil {
		return nil, nil, err
	}
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
		if err != nil {
			linux.CloseAll(files)
			for _, made := range reply {
				l.release(b, made.Name)
			}
			return nil, nil, err
		}
		fresh, slotFiles := describe(s)
		files = append(files, slotFiles...)
		reply = append(reply, fresh)
	}
	return reply, files, nil
}

// newSlot makes a slot; its files go to the client with the reply.
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

// handleWhere tells a client what another request of its is at.
func (l *Launcher) handleWhere(r *request) (any, []*os.File, error) {
	var m rpc.Where
	if err := json.Unmarshal(r.Body, &m); err != nil {
		return nil, nil, fmt.Errorf("decoding request: %w", err)
	}
	return rpc.At{Text: l.works.at(r.work.conn, m.Request)}, nil, nil
}

// handleConnect opens a further connection to the agent.
func (l *Launcher) handleConnect(r *request) (any, []*os.File, error) {
	var m rpc.Connect
	b, err := l.find(r, &m, func() string { return m.ID })
	if err != nil {
		return nil, nil, err
	}
	conn, err := b.connect()
	if err != nil {
		return nil, nil, b.orLost(err)
	}
	return nil, []*os.File{conn}, nil
}

func (l *Launcher) handleKill(r *request) error {
	var m rpc.Kill
	b, err := l.find(r, &m, func() string { return m.ID })
	if err != nil {
		return err
	}
	s, err := b.slot(m.Slot)
	if err != nil {
		return err
	}
	if m.Signal == int(unix.SIGKILL) {
		return b.killSlot(s)
	}
	return s.Signal(unix.Signal(m.Signal))
}

func (l *Launcher) handlePTY(r *request) (any, []*os.File, error) {
	var m rpc.PTY
	b, err := l.find(r, &m, func() string { return m.ID })
	if err != nil {
		return nil, nil, err
	}
	if u := m.User; u.UID < 0 || u.UID > engine.MaxID || u.GID < 0 || u.GID > engine.MaxID {
		return nil, nil, &engine.FieldError{Field: "user", Value: fmt.Sprintf("%d:%d", u.UID, u.GID), Rule: "must be ids of commands in a box"}
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
