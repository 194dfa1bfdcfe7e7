package langbot

import (
	"context"
	"slices"
	"strings"

	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// box is a session of the protocol, from the beginning of its creation to the end of its
// removal. Its fields below the first three are guarded by Server.mu.
type box struct {
	at       protocol.Context
	physical string
	key      session.Key

	state     state
	spec      protocol.BoxSpec // as it was asked for
	unsure    bool             // the mounts of the box may be others than those of spec
	processes map[string]*process
	ended     string // why it ended or ends, for the commands that run in it
	// gone is closed when it is out of the registry.
	gone chan struct{}
}

// state of a box. It changes only under the box's lock in Server.ops.
type state int

const (
	making state = iota
	alive
	ending
)

// logical is the name that replies have.
func (b *box) logical() string { return b.at.Logical(b.physical) }

// keyOf names a session for the manager: a physical id may hold what an id of boxd must
// not. One that is too long for it keeps its beginning, by which removeUnknown knows
// it; no physical id has an "@".
func (s *Server) keyOf(physical string) (session.Key, error) {
	id, err := policy.ScopeID("{id}", map[string]string{"id": physical}, false)
	if digest, long := strings.CutPrefix(id, "sha256:"); long {
		id = ours.FindString(physical) + "@" + digest
	}
	return session.Key{Tenant: s.o.Tenant, ID: id}, err
}

// reserve makes a box that is being created, if there is room for it. s.mu is held.
func (s *Server) reserveLocked(k *call, physical string, spec protocol.BoxSpec) (*box, error) {
	key, err := s.keyOf(physical)
	if err != nil {
		return nil, err
	}
	most := s.settingsLocked(k.at.Instance).limits.MaxSessions
	count := int64(0)
	for _, b := range s.boxes {
		if b.at.Instance == k.at.Instance {
			count++
		}
	}
	if count >= most {
		return nil, protocol.Errorf(protocol.CapacityExceeded, "Box session capacity reached (%d)", most)
	}
	spec.Cmd, spec.Env = "", nil // of one command, and maybe secret
	spec.ExtraMounts = extra(&spec)
	b := &box{at: k.at, physical: physical, key: key, spec: spec, processes: map[string]*process{}, gone: make(chan struct{})}
	s.boxes[physical], s.byKey[key.ID] = b, b
	return b, nil
}

// forget takes a box out of the registry, and its record out of the database.
func (s *Server) forget(b *box) {
	s.mu.Lock()
	if s.boxes[b.physical] != b {
		s.mu.Unlock()
		return
	}
	noted := s.store.remove(b.physical)
	list := make([]*process, 0, len(b.processes))
	for _, p := range b.processes {
		list = append(list, p)
		delete(b.processes, p.id)
	}
	b.state = ending
	delete(s.boxes, b.physical)
	delete(s.byKey, b.key.ID)
	close(b.gone)
	s.mu.Unlock()
	for _, p := range list {
		p.leave()
	}
	if err := noted.wait(); err != nil { // the next opening finds that there is no such session
		s.log.Warn("forgetting a session", "session", b.physical, "error", err)
	}
}

// find finds a session that is alive by its logical id.
func (s *Server) find(at protocol.Context, id string) (*box, error) {
	physical, err := at.Physical(id)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.boxes[physical]
	if b == nil || b.state != alive {
		return nil, notFound(at, physical)
	}
	return b, nil
}

// boxesWhere lists the sessions, in any state, of which ok says yes, by physical id.
func (s *Server) boxesWhere(ok func(*box) bool) []*box {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*box
	for _, b := range s.boxes {
		if ok(b) {
			list = append(list, b)
		}
	}
	slices.SortFunc(list, func(x, y *box) int { return strings.Compare(x.physical, y.physical) })
	return list
}

// sessionRecord is a box in the database.
type sessionRecord struct {
	At        protocol.Context         `json:"context"`
	Spec      protocol.BoxSpec         `json:"spec"`
	Processes map[string]processRecord `json:"processes,omitempty"`
}

// noteLocked records b as it is. s.mu is held, which orders the records.
func (s *Server) noteLocked(b *box) *change {
	r := sessionRecord{At: b.at, Spec: b.spec}
	for _, p := range b.processes {
		if r.Processes == nil {
			r.Processes = map[string]processRecord{}
		}
		r.Processes[p.id] = p.processRecord
	}
	return s.store.put(b.physical, r)
}

// background does something that no client waits for, or that goes on without one. ctx ends
// when the server closes; one that is closed begins nothing.
func (s *Server) background(f func(ctx context.Context)) (begun bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.wg.Go(func() { f(s.ctx) })
	return true
}
