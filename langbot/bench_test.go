package langbot

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/boxd/boxd/engine/enginetest"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/langbot/door"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// bench is a server over a real session manager over a fake engine.
type bench struct {
	*testing.T
	dir    string
	host   *enginetest.Host
	client *enginetest.Client
	o      Options
	// storage is the storage of host, or nil.
	storage engine.Storage
	audit   session.Auditor
	tenants map[string]policy.Tenant
	images  session.Images // may be nil
	allowed []string       // images; nil: all
	profile policy.ProfileConfig
	// secret are sensitive mount roots.
	secret []string
	// network: the engine's boxes have a network.
	network bool

	sessions *session.Manager
	server   *Server
	mu       sync.Mutex
	conns    map[string]*door.Conn
}

type object = map[string]any

// open returns a bench without sessions.
func open(t *testing.T, change ...func(*Options)) *bench {
	t.Helper()
	dir := t.TempDir()
	for _, sub := range []string{"shared", "skills"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b := &bench{T: t, dir: dir, host: enginetest.NewHost(dir)}
	b.client = b.host.Connect()
	b.storage = b.client
	b.host.RefuseLimits(engine.ErrUnenforceable)
	b.o = Options{DB: filepath.Join(dir, "langbot.db"), Health: b.client.Health, Roots: []string{b.path("shared")}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	for _, f := range change {
		f(&b.o)
	}
	b.start()
	t.Cleanup(b.stop)
	return b
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// start starts a daemon.
func (b *bench) start() {
	b.Helper()
	decide, err := policy.New(policy.Config{NetworkAvailable: b.network, AllowedMountRoots: b.o.Roots, SensitiveMountRoots: b.secret, Tenants: b.tenants, AllowedImages: b.allowed, Profiles: map[string]policy.ProfileConfig{policy.LangbotProfile: b.profile}})
	if err != nil {
		b.Fatal(err)
	}
	b.sessions, err = session.Open(context.Background(), session.Options{
		DB: b.path("boxd.db"), Workspaces: b.path("workspaces"), Engine: b.client, Storage: b.storage, Policy: decide, Logger: b.o.Logger, Audit: b.audit, Images: b.images,
	})
	if err != nil {
		b.Fatal(err)
	}
	b.o.Sessions = b.sessions
	if b.server, err = New(b.o); err != nil {
		b.Fatal(err)
	}
	b.conns = map[string]*door.Conn{}
}

// stop stops the daemon and leaves its sessions alone.
func (b *bench) stop() {
	b.Helper()
	if b.server == nil {
		return
	}
	for _, c := range b.conns {
		b.server.Closed(c)
	}
	if err := errors.Join(b.server.Close(), b.sessions.Close(context.Background(), false)); err != nil {
		b.Error(err)
	}
	b.server = nil
}

// restart replaces the daemon by a new one.
func (b *bench) restart() {
	b.Helper()
	b.stop()
	b.start()
}

// bubble runs fn with a clock of its own.
func bubble(t *testing.T, fn func(b *bench), change ...func(*Options)) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, change...)
		fn(b)
		b.stop()
	})
}

var at = protocol.Context{Instance: "i", Workspace: "w", Generation: 1}

func (b *bench) conn(instance string) *door.Conn {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conns[instance] == nil {
		c := door.NewConn(instance)
		b.server.Opened(c)
		b.conns[instance] = c
	}
	return b.conns[instance]
}

// try requests an action and returns the answer as a client reads it.
func (b *bench) try(ctx context.Context, at *protocol.Context, action string, data any) (object, error) {
	raw, err := json.Marshal(data)
	if err != nil {
		b.Fatal(err)
	}
	instance := "i"
	if at != nil {
		instance = at.Instance
	}
	out, err := b.server.Do(ctx, b.conn(instance), protocol.Request{Seq: []byte("7"), Action: action, Data: raw, Context: at})
	if err != nil {
		return nil, err
	}
	var answer object
	if err := json.Unmarshal(must(json.Marshal(out)), &answer); err != nil {
		b.Fatal(err)
	}
	return answer, nil
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// call requests an action for the usual workspace, which must succeed.
func (b *bench) call(action string, data any) object {
	b.Helper()
	return b.callAt(at, action, data)
}

func (b *bench) callAt(at protocol.Context, action string, data any) object {
	b.Helper()
	out, err := b.try(context.Background(), &at, action, data)
	if err != nil {
		b.Fatalf("%s: %v", action, err)
	}
	return out
}

// refused requests an action that must fail with class, and returns the text.
func (b *bench) refused(class protocol.Class, action string, data any) string {
	b.Helper()
	return b.refusedAt(at, class, action, data)
}

func (b *bench) refusedAt(at protocol.Context, class protocol.Class, action string, data any) string {
	b.Helper()
	out, err := b.try(context.Background(), &at, action, data)
	var known *protocol.Error
	if !errors.As(err, &known) || known.Class != class {
		b.Fatalf("%s: want a %s, got %v, %v", action, class, out, err)
	}
	if strings.Contains(known.Text, at.Runtime()) {
		b.Errorf("%q names the physical id", known.Text)
	}
	return known.Text
}

// specOf is a client's spec with changes.
func specOf(id string, change object) object {
	s := object{
		"session_id": id, "cmd": "", "workdir": "/workspace", "timeout_sec": 30, "network": "off", "env": object{},
		"image": "rockchin/langbot-sandbox:latest", "host_path": nil, "host_path_mode": "rw", "mount_path": "/workspace",
		"extra_mounts": []any{}, "skill_name": nil, "persistent": false, "cpus": 1.0, "memory_mb": 512, "pids_limit": 128,
		"read_only_rootfs": true, "workspace_quota_mb": 0,
	}
	for k, v := range change {
		s[k] = v
	}
	return s
}

// cmd is a spec with a command.
func cmd(id, command string) object { return specOf(id, object{"cmd": command}) }

// proc is a request to start a managed process.
func proc(session, id, command string, args ...string) object {
	return object{"session_id": session, "spec": object{"process_id": id, "command": command, "args": append([]string{}, args...), "env": object{"B": "2", "A": "1"}}}
}

// names lists the keys of the object under key in a reply.
func (b *bench) sessionsOf(at protocol.Context) (ids []string) {
	for _, s := range b.callAt(at, "box_get_sessions", object{})["sessions"].([]any) {
		ids = append(ids, s.(object)["session_id"].(string))
	}
	return ids
}

// targets lists the mount targets of a box.
func targets(b *enginetest.Box) (list []string) {
	for _, m := range b.Spec().Mounts {
		list = append(list, m.Target)
	}
	return list
}

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
