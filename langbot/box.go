package langbot

import (
	"slices"
	"strings"

	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// box is a session of the protocol, from the start of its creation to the end of its removal.
// Server.mu guards all fields but the first three.
type box struct {
	at       protocol.Context
	physical string
	key      session.Key

	state     state
	spec      protocol.BoxSpec // as the client asked for it
	unsure    bool             // the mounts of the box may differ from those of spec
	processes map[string]*process
	ended     string // why it ended or is ending, told to the commands that run in it
	// gone is closed when the box leaves the registry.
	gone chan struct{}
}

// state of a box. It changes only under the box's lock in Server.ops.
type state int

const (
	making state = iota
	alive
	ending
)

func newBox(at protocol.Context, physical string, key session.Key, spec protocol.BoxSpec) *box {
	return &box{at: at, physical: physical, key: key, spec: spec, processes: map[string]*process{}, gone: make(chan struct{})}
}

// logical is the session's ID in replies.
func (b *box) logical() string { return b.at.Logical(b.physical) }

// keyOf names a session for the manager, whose IDs may not contain everything that a physical
// ID may. One that is too long keeps its beginning, by which removeUnknown recognises it; no
// physical ID contains an "@".
func (s *Server) keyOf(physical string) (session.Key, error) {
	id, err := policy.ScopeID("{id}", map[string]string{"id": physical}, false)
	if digest, long := strings.CutPrefix(id, "sha256:"); long {
		id = ours.FindString(physical) + "@" + digest
	}
	return session.Key{Tenant: s.o.Tenant, ID: id}, err
}

// reserveLocked registers a box that is about to be created, if the instance may have one
// more. s.mu is held.
func (s *Server) reserveLocked(at protocol.Context, physical string, spec protocol.BoxSpec) (*box, error) {
	key, err := s.keyOf(physical)
	if err != nil {
		return nil, err
	}
	most := s.settingsLocked(at.Instance).limits.MaxSessions
	count := int64(0)
	for _, b := range s.boxes {
		if b.at.Instance == at.Instance {
			count++
		}
	}
	if count >= most {
		return nil, protocol.Errorf(protocol.CapacityExceeded, "Box session capacity reached (%d)", most)
	}
	spec.Cmd, spec.Env = "", nil // these belong to one command, and may be secret
	spec.ExtraMounts = extra(&spec)
	b := newBox(at, physical, key, spec)
	s.boxes[physical] = b
	return b, nil
}

// forget removes a box from the registry, and its record from the database.
func (s *Server) forget(b *box) {
	s.mu.Lock()
	if s.boxes[b.physical] != b {
		s.mu.Unlock()
		return
	}
	noted := s.store.remove(b.physical)
	for _, p := range b.processes {
		p.leaveLocked()
	}
	b.state = ending
	delete(s.boxes, b.physical)
	close(b.gone)
	s.mu.Unlock()
	if err := noted.wait(); err != nil { // the next start finds that the session does not exist
		s.log.Warn("forgetting a session", "session", b.physical, "error", err)
	}
}

// find returns the live session with a logical ID.
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

// boxesWhere lists the sessions, in any state, for which ok returns true, by physical ID.
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

func anyBox(*box) bool { return true }

// sessionRecord is a box in the database.
type sessionRecord struct {
	At        protocol.Context         `json:"context"`
	Spec      protocol.BoxSpec         `json:"spec"`
	Processes map[string]processRecord `json:"processes,omitempty"`
}

// noteLocked queues a record of b as it is now. s.mu is held, which orders the records.
func (s *Server) noteLocked(b *box) *change {
	r := sessionRecord{At: b.at, Spec: b.spec}
	if len(b.processes) > 0 {
		r.Processes = make(map[string]processRecord, len(b.processes))
	}
	for id, p := range b.processes {
		r.Processes[id] = p.processRecord
	}
	return s.store.put(b.physical, r)
}
