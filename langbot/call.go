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

// call is one action that is asked for.
type call struct {
	s      *Server
	conn   *door.Conn
	at     protocol.Context // Instance always; the rest for tenants only
	action string
	data   json.RawMessage
	seq    string

	clock *time.Timer                // of inTime
	ran   atomic.Pointer[execResult] // how the command of box_exec has ended
}

// action is what one does.
type action struct {
	// tenant: it is done for a workspace, behind the fence.
	tenant bool
	// admitted: where admission is required it needs a grant.
	admitted bool
	// within is the time after which it is answered for; 0: when it is done.
	within time.Duration
	do     func(k *call, ctx context.Context) (any, error)
}

// actions are all but those of the skill store.
var actions = map[string]action{
	"__ping":                             {do: (*call).ping},
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

// Do does one action: who asks, then admission, then the fence, then the action itself,
// and the fence once more, because it may have moved meanwhile.
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
		return nil, protocol.Errorf(protocol.PermissionError, "the context is of another instance than the connection")
	}
	if !a.tenant {
		out, err := a.do(k, ctx)
		return out, k.fail(ctx, err)
	}
	if r.Context == nil {
		return nil, protocol.Errorf(protocol.PermissionError, "%s needs a context: it is done for a workspace", r.Action)
	}
	k.at = *r.Context
	if a.within > 0 {
		return k.inTime(ctx, a.within, func(ctx context.Context) (any, error) { return k.asTenant(ctx, a) })
	}
	return k.asTenant(ctx, a)
}

// asTenant does an action of a workspace: after admission, behind the fence.
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

// who is the caller for the audit log.
func (k *call) who() session.Caller {
	return session.Caller{Tenant: k.s.o.Tenant, Actor: "langbot:" + k.at.Instance, Request: k.seq}
}

// self is boxd itself as a caller, for what nobody asked for right now.
func (s *Server) self() session.Caller {
	return session.Caller{Tenant: s.o.Tenant, Actor: "langbot"}
}

func (k *call) ping(context.Context) (any, error) { return nil, nil }

// settings are those that hold for the instance.
func (k *call) settings() *settings {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	return k.s.settingsLocked(k.at.Instance)
}

// session reads the key session_id.
func (k *call) session() (string, error) { return protocol.String(k.data, "session_id") }

// errShutdown is the cause of the end of everything.
var errShutdown = errors.New("the server is shutting down")
