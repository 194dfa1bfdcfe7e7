package langbot

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/langbot/linerelay"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/session"
)

// process is a managed process of a session. Its lock is in Server.ops; the fields from
// live on are guarded by Server.mu.
type process struct {
	processRecord
	b       *box
	id      string
	gone    chan struct{} // closed when it is out of the registry
	leaving sync.Once

	live    *session.Process // nil while it starts
	started time.Time
	relay   *linerelay.Relay // nil until somebody attaches
	end     *processEnd      // nil until it has ended
}

// processRecord is a process in the database. Values of its environment are not kept.
type processRecord struct {
	Name    string   `json:"name"` // for the session manager
	Command string   `json:"command"`
	Args    []string `json:"args"`
	Cwd     string   `json:"cwd"`
	EnvKeys []string `json:"env_keys"`
}

// processEnd is what is told of a process that has ended, also when its output is gone.
type processEnd struct {
	at      time.Time
	code    int
	preview string
}

// processName is the lock of a process in Server.ops: a physical id holds no NUL.
func processName(b *box, id string) string { return b.physical + "\x00" + id }

// runsLocked says whether it has not ended. Server.mu is held.
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

// leave tells everybody that p is out of the registry.
func (p *process) leave() {
	p.leaving.Do(func() { close(p.gone) })
}

// dropProcess takes p out of the registry, unless another one has its place.
func (s *Server) dropProcess(p *process) {
	s.mu.Lock()
	relay := p.relay
	if p.b.processes[p.id] == p {
		delete(p.b.processes, p.id)
		if p.b.state == alive {
			s.noteLocked(p.b) // what is on record and does not exist is dropped at the next opening
		}
	}
	s.mu.Unlock()
	if relay != nil {
		relay.Shut(closeNormal, "")
	}
	p.leave()
}

// processesOf lists the processes of a session by their ids.
func (s *Server) processesOf(b *box) []*process {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*process, 0, len(b.processes))
	for _, p := range b.processes {
		list = append(list, p)
	}
	slices.SortFunc(list, func(x, y *process) int { return strings.Compare(x.id, y.id) })
	return list
}

// process finds a process by what the request says.
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
	if !running && end == nil { // in this very moment
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

// endOf is how a process has ended.
func endOf(p *session.Process) *processEnd {
	return &processEnd{at: p.View().EndedAt, code: p.Result().Status(), preview: preview(p)}
}
