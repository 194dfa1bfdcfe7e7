package api

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// fakeEngine keeps no volumes: it lists those that were ever made, and one size is too much.
const tooMuch = 1 << 40

var _ engine.Storage = (*fakeEngine)(nil)

func (e *fakeEngine) MakeVolume(_ context.Context, v engine.Volume) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if v.Bytes == tooMuch {
		return engine.ErrUnenforceable
	}
	e.volumes = append(e.volumes, v)
	return nil
}

func (e *fakeEngine) RemoveVolume(context.Context, string) error { return nil }

func (e *fakeEngine) Volumes(context.Context) (list []engine.VolumeState, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, v := range e.volumes {
		list = append(list, engine.VolumeState{Volume: v})
	}
	return list, nil
}

func (e *fakeEngine) OpenDirectory(context.Context, engine.Directory) (*os.File, error) {
	return nil, errors.New("not here")
}

func (e *fakeEngine) LimitDirectory(context.Context, engine.Directory, int64, int64) error {
	return engine.ErrUnenforceable
}

func TestHardLimitedWorkspace(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	ask := apitypes.SessionSpec{WorkspaceSize: ptr(apitypes.Size(8 << 20)), WorkspaceInodes: ptr(int64(99)), WorkspaceTarget: "/data"}
	s, err := c.Ensure(ctx, apitypes.SessionRequest{ID: "a", SessionSpec: ask})
	if err != nil || s.WorkspaceSize != 8<<20 || s.WorkspaceInodes != 99 || s.WorkspaceTarget != "/data" || s.Unenforced != "" || len(s.Mounts) != 0 {
		t.Fatalf("%+v, %v", s, err)
	}
	if v := f.engine.volumes; len(v) != 1 || v[0].Bytes != 8<<20 || v[0].Inodes != 99 {
		t.Errorf("volumes %+v", v)
	}
	if s := ensure(t, c, "plain"); s.WorkspaceSize != 0 || s.WorkspaceTarget != "/workspace" {
		t.Errorf("%+v", s)
	}
	_, err = c.Ensure(ctx, apitypes.SessionRequest{ID: "a", SessionSpec: apitypes.SessionSpec{WorkspaceSize: ptr(apitypes.Size(9 << 20))}})
	var e *client.Error
	if !errors.As(err, &e) || e.Code != apitypes.CodeSessionConflict || len(e.Conflicts) != 1 || e.Conflicts[0].Field != "workspace_size" {
		t.Errorf("conflict: %+v", err)
	}
	_, err = c.Ensure(ctx, apitypes.SessionRequest{ID: "b", SessionSpec: apitypes.SessionSpec{WorkspaceSize: ptr(apitypes.Size(1))}})
	if !errors.As(err, &e) || e.Code != apitypes.CodeInvalid || e.Field != "workspace_size" {
		t.Errorf("too small: %+v", err)
	}
	_, err = c.Ensure(ctx, apitypes.SessionRequest{ID: "b", SessionSpec: apitypes.SessionSpec{WorkspaceSize: ptr(apitypes.Size(tooMuch))}})
	if !errors.As(err, &e) || e.Code != apitypes.CodeUnenforceable || !strings.Contains(e.Detail, "workspace_size 1 TiB") {
		t.Errorf("unenforceable: %+v", err)
	}
	// What belongs to callers within the daemon cannot be asked for.
	for _, body := range []string{
		`{"id":"x","mounts":[{"source":"/","target":"/x","volume":"v"}]}`, `{"id":"x","make_workspace":true}`, `{"id":"x","MakeWorkspace":true}`,
	} {
		if p := f.problem("POST", "/v1/sessions", operatorToken, body); p.Code != apitypes.CodeUnknownField {
			t.Errorf("%s: %+v", body, p)
		}
	}
}

// TestVolumeMounts: what the daemon has mounted out of volumes of its own is shown as
// that, and no path of the host.
func TestVolumeMounts(t *testing.T) {
	f := serve(t, nil)
	_, err := f.sessions.Ensure(t.Context(), session.Caller{}, session.Key{Tenant: DefaultTenant, ID: "a"},
		policy.Request{Wishes: spec.Wishes{Mounts: []spec.MountWish{{Source: "/one", Target: "/skills/one", Volume: "skills-1", ReadOnly: true}}}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := f.client().Session(t.Context(), "a")
	if want := (apitypes.Mount{Source: "volume:skills-1/one", Target: "/skills/one", ReadOnly: true}); err != nil || len(s.Mounts) != 1 || s.Mounts[0] != want {
		t.Errorf("%+v, %v", s.Mounts, err)
	}
	// And a value that is shown cannot be requested.
	_, err = f.client().Ensure(t.Context(), apitypes.SessionRequest{ID: "b", SessionSpec: apitypes.SessionSpec{Mounts: s.Mounts}})
	if !client.IsCode(err, apitypes.CodeInvalid) {
		t.Errorf("asked for: %v", err)
	}
}
