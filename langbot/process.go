package langbot

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/langbot/linerelay"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/session"
)

// process is a managed process of a session. Its lock is in Server.ops; Server.mu guards the
// fields from live on.
type process struct {
	processRecord
	b    *box
	id   string
	gone chan struct{} // closed when it leaves the registry

	live    *session.Process // nil while it starts
	started time.Time
	relay   *linerelay.Relay // nil until a client attaches
	end     *processEnd      // nil until it has ended
}

// processRecord is a process in the database. The values of its environment are not recorded.
type processRecord struct {
	Name    string   `json:"name"` // for the session manager
	Command string   `json:"command"`
	Args    []string `json:"args"`
	Cwd     string   `json:"cwd"`
	EnvKeys []string `json:"env_keys"`
}

// processEnd describes the end of a process. It stays available when the output is gone.
type processEnd struct {
	at      time.Time
	code    int
	preview string
}

// processName names the lock of a process in Server.ops. A physical ID contains no NUL.
func processName(b *box, id string) string { return b.physical + "\x00" + id }

// runsLocked reports whether p runs or starts. Server.mu is held.
func (p *process) runsLocked() bool {
	if p.live == nil {
		return true
	}
	select {
	case <-p.live.Done():
		return false
	default:
		return true
	}
}

// leaveLocked removes p from its session. Server.mu is held.
func (p *process) leaveLocked() {
	delete(p.b.processes, p.id)
	close(p.gone)
}

// dropProcess removes p from the registry, if it is still there, and shuts its relay.
func (s *Server) dropProcess(p *process) {
	s.mu.Lock()
	relay := p.relay
	if p.b.processes[p.id] == p {
		p.leaveLocked()
		if p.b.state == alive {
			s.noteLocked(p.b) // nobody waits: the next server drops records of processes that do not exist
		}
	}
	s.mu.Unlock()
	if relay != nil {
		relay.Shut(closeNormal, "")
	}
}

// processesOf lists the processes of a session by ID.
func (s *Server) processesOf(b *box) []*process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(b.processes), func(x, y *process) int { return strings.Compare(x.id, y.id) })
}

// process returns the process that the request names.
func (k *call) process() (*process, error) {
	id, err := k.session()
	if err != nil {
		return nil, err
	}
	name, err := protocol.StringOr(k.data, "process_id", protocol.DefaultProcess)
	if err != nil {
		return nil, err
	}
	b, err := k.s.find(k.at, id)
	if err != nil {
		return nil, err
	}
	return k.s.processOf(b, name)
}

func (s *Server) processOf(b *box, id string) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := b.processes[id]
	if p == nil {
		return nil, processNotFound(b, id)
	}
	return p, nil
}

// getProcess describes a process.
func (k *call) getProcess(context.Context) (any, error) {
	p, err := k.process()
	if err != nil {
		return nil, err
	}
	return k.s.processInfo(p), nil
}

func (s *Server) processInfo(p *process) protocol.ProcessInfo {
	s.mu.Lock()
	running, end, live, started := p.runsLocked(), p.end, p.live, p.started
	attached := p.relay != nil && p.relay.Attached()
	s.mu.Unlock()
	if !running && end == nil { // it ended a moment ago
		end = endOf(live)
	}
	info := protocol.ProcessInfo{
		SessionID: p.b.logical(), ProcessID: p.id, Status: protocol.Running,
		Command: p.Command, Args: p.Args, Cwd: p.Cwd, EnvKeys: p.EnvKeys,
		Attached: attached, StartedAt: protocol.Time(started),
	}
	if end != nil {
		at := protocol.Time(end.at)
		info.Status, info.ExitedAt, info.ExitCode, info.StderrPreview = protocol.Exited, &at, &end.code, end.preview
	} else {
		info.StderrPreview = preview(live)
	}
	return info
}

// endOf describes the end of a process that has ended.
func endOf(p *session.Process) *processEnd {
	return &processEnd{at: p.View().EndedAt, code: p.Result().Status(), preview: preview(p)}
}
