package langbot

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/langbot/door"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/langbot/skills"
	"github.com/boxd/boxd/session"
)

// call is one requested action.
type call struct {
	s      *Server
	conn   *door.Conn
	at     protocol.Context // Instance always; the rest only for an action of a workspace
	action string
	data   json.RawMessage
	seq    string

	clock *time.Timer                // see inTime
	ran   atomic.Pointer[execResult] // how the command of box_exec ended
}

// action describes how an action is carried out.
type action struct {
	// tenant: it belongs to a workspace, and runs behind the fence.
	tenant bool
	// admitted: it needs a grant where admission is required.
	admitted bool
	// within bounds the time until the answer, even if the action hangs; 0 waits for its end.
	within time.Duration
	do     func(k *call, ctx context.Context) (any, error)
}

// actions are all actions except those of the skill store.
var actions = map[string]action{
	"__ping":                             {do: func(*call, context.Context) (any, error) { return nil, nil }},
	"__file_chunk":                       {do: (*call).fileChunk},
	"box_init":                           {do: (*call).init},
	"box_health":                         {do: (*call).health},
	"box_get_backend_info":               {do: (*call).backendInfo},
	"box_upsert_sandbox_admission_grant": {do: (*call).upsertGrant},
	"box_revoke_sandbox_admission_grant": {do: (*call).revokeGrant},
	"box_verify_shared_workspace":        {do: (*call).verifySharedWorkspace},
	"box_shutdown":                       {do: (*call).shutdown},

	"box_status":       {tenant: true, do: (*call).status},
	"box_get_sessions": {tenant: true, do: (*call).getSessions},

	"box_exec":                  {tenant: true, admitted: true, within: execTime, do: (*call).exec},
	"box_create_session":        {tenant: true, admitted: true, within: sessionTime, do: (*call).createSession},
	"box_get_session":           {tenant: true, admitted: true, do: (*call).getSession},
	"box_delete_session":        {tenant: true, admitted: true, do: (*call).deleteSession},
	"box_start_managed_process": {tenant: true, admitted: true, do: (*call).startProcess},
	"box_get_managed_process":   {tenant: true, admitted: true, do: (*call).getProcess},
	"box_stop_managed_process":  {tenant: true, admitted: true, do: (*call).stopProcess},
}

// Do carries out one action. It checks the caller, the admission and the fence, runs the
// action, and checks the fence once more, because the generation may have advanced meanwhile.
func (s *Server) Do(ctx context.Context, c *door.Conn, r protocol.Request) (any, error) {
	a, ok := actions[r.Action]
	if !ok && skills.Has(r.Action) {
		a, ok = action{tenant: true, do: (*call).skill}, true
	}
	if !ok {
		return nil, protocol.Errorf(protocol.ValueError, "Action %s not found", r.Action)
	}
	k := &call{s: s, conn: c, at: protocol.Context{Instance: c.Instance()}, action: r.Action, data: r.Data, seq: string(r.Seq)}
	if r.Context != nil && r.Context.Instance != c.Instance() {
		return nil, protocol.Errorf(protocol.PermissionError, "the context names another instance than the connection")
	}
	if !a.tenant {
		out, err := a.do(k, ctx)
		return out, k.fail(ctx, err)
	}
	if r.Context == nil {
		return nil, protocol.Errorf(protocol.PermissionError, "%s needs a context: it belongs to a workspace", r.Action)
	}
	k.at = *r.Context
	if err := s.sessions.AdmitRequest(s.o.Tenant, nil); err != nil {
		return nil, k.fail(ctx, err)
	}
	if a.within > 0 {
		return k.inTime(ctx, a.within, func(ctx context.Context) (any, error) { return k.asTenant(ctx, a) })
	}
	return k.asTenant(ctx, a)
}

// asTenant carries out an action of a workspace: after admission, behind the fence.
func (k *call) asTenant(ctx context.Context, a action) (any, error) {
	if a.admitted {
		if err := k.admit(ctx); err != nil {
			return nil, k.fail(ctx, err)
		}
	}
	inside, leave, err := k.s.fence.Enter(ctx, k.at)
	if err != nil {
		return nil, k.fail(ctx, err)
	}
	defer leave()
	out, err := a.do(k, inside)
	if stale := k.s.fence.Check(k.at); stale != nil {
		return nil, stale
	}
	return out, k.fail(inside, err)
}

// who is the client as the audit log names it.
func (k *call) who() session.Caller {
	return session.Caller{Tenant: k.s.o.Tenant, Actor: "langbot:" + k.at.Instance, Request: k.seq}
}

// self is boxd itself as the audit log names it, for work that no client asked for.
func (s *Server) self() session.Caller {
	return session.Caller{Tenant: s.o.Tenant, Actor: "langbot"}
}

// settings returns the settings of the instance.
func (k *call) settings() *settings {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	return k.s.settingsLocked(k.at.Instance)
}

// session reads the key session_id.
func (k *call) session() (string, error) { return protocol.String(k.data, "session_id") }

// errShutdown is the cause with which the server ends its background work.
var errShutdown = errors.New("the server is shutting down")
