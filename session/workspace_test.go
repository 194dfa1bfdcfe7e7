package session

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

func (b *bench) workspace(key Key) string {
	return filepath.Join(b.dir, "workspaces", key.Tenant, key.ID)
}

func TestWorkspaceStaysWithTheSession(t *testing.T) {
	b := open(t)
	v := b.ensure(keyA, policy.Request{})
	dir := b.workspace(keyA)
	st, err := os.Stat(dir)
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Fatalf("workspace: %v, %v", st, err)
	}
	m := b.host.Box(v.Box).Spec().Mounts[0]
	if m.Source != dir || m.Target != engine.WorkspaceTarget || m.ReadOnly || m.Within == "" {
		t.Errorf("mount %+v", m)
	}
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("kept"), 0o600))
	b.host.Kill(v.Box)
	b.exec(keyA, "true")
	b.restart()
	if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != "kept" {
		t.Errorf("%q, %v", got, err)
	}
	must(t, b.Remove(ctx, me, keyA))
	if _, err := os.Stat(filepath.Dir(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the removal: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(b.dir, "workspaces", ".trash")); len(left) != 0 {
		t.Errorf("%d entries in the trash", len(left))
	}
}

func TestWorkspaceModes(t *testing.T) {
	b := open(t)
	host := t.TempDir()
	b.Close(ctx, false)
	b.policy.AllowedMountRoots = []string{host}
	b.start()
	must(t, os.WriteFile(filepath.Join(host, "mine"), nil, 0o600))

	v := b.ensure(keyA, policy.Request{Wishes: spec.Wishes{WorkspaceMode: ptr("none")}})
	if n := len(b.host.Box(v.Box).Spec().Mounts); n != 0 {
		t.Errorf("none: %d mounts", n)
	}
	v = b.ensure(keyB, policy.Request{Wishes: spec.Wishes{WorkspaceMode: ptr("ro")}})
	if m := b.host.Box(v.Box).Spec().Mounts[0]; !m.ReadOnly {
		t.Errorf("ro: %+v", m)
	}
	key := Key{"t", "host"}
	v = b.ensure(key, policy.Request{Wishes: spec.Wishes{Workspace: host}})
	if m := b.host.Box(v.Box).Spec().Mounts[0]; m.Source != host || m.Target != engine.WorkspaceTarget {
		t.Errorf("host path: %+v", m)
	}
	if _, err := os.Stat(b.workspace(key)); err == nil {
		t.Error("a directory was made for nothing")
	}
	must(t, b.Remove(ctx, me, key))
	if _, err := os.Stat(filepath.Join(host, "mine")); err != nil {
		t.Errorf("a host directory was touched: %v", err)
	}
}

func TestWorkspaceIsDeletedAtExpiry(t *testing.T) {
	bubble(t, func(b *bench) {
		b.ensure(keyA, policy.Request{})
		must(t, os.WriteFile(filepath.Join(b.workspace(keyA), "file"), nil, 0o600))
		time.Sleep(301 * time.Second)
		for !b.gone(keyA) {
			time.Sleep(time.Second)
		}
		if _, err := os.Stat(b.workspace(keyA)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("it is still there: %v", err)
		}
	})
}

// A session that cannot be made must not take files away that were there before.
func TestFailedCreateKeepsAnOldWorkspace(t *testing.T) {
	b := open(t)
	dir := b.workspace(keyA)
	must(t, os.MkdirAll(dir, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	b.client.Cut()
	if _, err := b.Ensure(ctx, me, keyA, policy.Request{}); err == nil {
		t.Fatal("made without an engine")
	}
	if _, err := os.Stat(filepath.Join(dir, "file")); err != nil {
		t.Error(err)
	}
}

func TestQuotaOfWorkspaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.policy.TenantDefaults.WorkspaceBytes = 64 << 10
		b.start()
		b.exec(keyA, "true")
		file := filepath.Join(b.workspace(keyA), "big")
		must(t, os.WriteFile(file, bytes.Repeat([]byte("x"), 128<<10), 0o600))
		b.exec(keyA, "true") // not measured yet
		time.Sleep(measureEvery + time.Minute)
		if _, err := b.Exec(ctx, me, keyA, nil, Exec{Args: []string{"true"}}); !errors.Is(err, policy.ErrQuota) {
			t.Errorf("exec: %v, want a quota", err)
		}
		if _, err := b.Start(ctx, me, keyA, nil, ProcessSpec{ID: "p", Args: []string{"serve"}}); !errors.Is(err, policy.ErrQuota) {
			t.Errorf("start: %v, want a quota", err)
		}
		if v := b.get(keyA); v.WorkspaceBytes < 128<<10 {
			t.Errorf("measured %d", v.WorkspaceBytes)
		}
		if _, err := b.Ensure(ctx, me, keyB, policy.Request{}); !errors.Is(err, policy.ErrQuota) {
			t.Errorf("create: %v, want a quota", err)
		}
		b.restart()
		synctest.Wait()
		if _, err := b.Ensure(ctx, me, keyB, policy.Request{}); !errors.Is(err, policy.ErrQuota) {
			t.Errorf("create after a restart: %v, want a quota", err)
		}
		must(t, os.Remove(file))
		time.Sleep(measureEvery + time.Minute)
		b.exec(keyA, "true")
		b.Close(ctx, false)
	})
}

// What a removed session has written must not be what the next one of its name finds.
func TestWorkspaceThatCannotBeDeleted(t *testing.T) {
	b := open(t)
	b.ensure(keyA, policy.Request{})
	file := filepath.Join(b.workspace(keyA), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Remove(filepath.Join(b.dir, "workspaces", ".trash")))
	if err := b.Remove(ctx, me, keyA); !errors.Is(err, ErrStorage) {
		t.Errorf("error %v", err)
	}
	if v := b.get(keyA); v.State != Stopping {
		t.Errorf("state %q", v.State)
	}
	b.restart()
	b.ensure(keyA, policy.Request{}) // waits for the removal
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a new session has the old file: %v", err)
	}
}
