package langbot

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
)

func TestMain(m *testing.M) { testutil.MainReaping(m) }

// patience bounds what a test waits for, so that a hang is a failure with a name.
const patience = 2 * time.Minute

// anyKernel skips a test to which kernel and cgroups make no difference where only the
// others are wanted.
func anyKernel(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("no kernel makes a difference to this; -short leaves it out")
	}
}

// world is a daemon with a door, and a directory that LangBot and the boxes share.
type world struct {
	*daemon.Daemon
	t      *testing.T
	shared string         // of user 1000: an allowed root
	api    *client.Client // of the tenant "default"
	every  *client.Client // of all tenants
}

// sharedOwner stands for the user that LangBot runs as.
const sharedOwner = 1000

// begin runs a daemon that ends, with its sessions, when the test does.
func begin(t *testing.T, args ...string) *world {
	t.Helper()
	testutil.RequireRoot(t)
	dir := testutil.ReachableDir(t, "")
	w := &world{t: t, shared: filepath.Join(dir, "shared")}
	if err := os.Mkdir(w.shared, 0o755); err != nil {
		t.Fatal(err)
	}
	err := os.Chown(w.shared, sharedOwner, sharedOwner)
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"--langbot-listen", "127.0.0.1:0", "--allow-mount-root", w.shared}, args...)
	w.Daemon, w.api = daemon.ForTest(t, daemon.Config{Dir: dir, Args: args, Env: engineEnv})
	if w.every, err = client.New(client.Options{Socket: w.Socket(), Tenant: "*"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.every.Close)
	return w
}

// dialer knows where the door of the latest incarnation is.
func (w *world) dialer() Dialer {
	w.t.Helper()
	address, err := w.LangbotAddress()
	if err != nil {
		w.t.Fatalf("%v:\n%s", err, w.LogTail(20))
	}
	return Dialer{Base: "ws://" + address, Deflate: true}
}

// dial opens an RPC connection.
func (w *world) dial(instance string) *Client {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	c, err := w.dialer().Dial(ctx, instance)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	return c
}

// bot is a workspace of an instance, seen through one connection.
type bot struct {
	*Client
	w  *world
	at Context
}

// bot opens a connection for a workspace.
func (w *world) bot(instance, workspace string) *bot {
	w.t.Helper()
	return &bot{w.dial(instance), w, Context{instance, workspace, 1}}
}

type object = map[string]any

// call does an action that must succeed.
func (b *bot) call(action string, data any) object {
	b.w.t.Helper()
	var out object
	if err := b.try(action, data, &out); err != nil {
		b.w.t.Fatalf("%s: %v", action, err)
	}
	return out
}

func (b *bot) try(action string, data, out any) error {
	ctx, cancel := context.WithTimeout(b.w.t.Context(), patience)
	defer cancel()
	return b.Call(ctx, &b.at, action, data, out)
}

// refused does an action that must fail with an error of class, which it returns.
func (b *bot) refused(class, action string, data any) string {
	b.w.t.Helper()
	var out object
	err := b.try(action, data, &out)
	remote, ok := err.(*RemoteError)
	if !ok {
		b.w.t.Fatalf("%s: want a %s, got %v, %v", action, class, out, err)
	}
	if !strings.HasPrefix(remote.Message, class+":") || remote.Class() != class && strings.HasPrefix(class, "Box") {
		b.w.t.Fatalf("%s: want a %s, got %q, which is a %s for the client", action, class, remote.Message, remote.Class())
	}
	return remote.Message
}

// spec is what LangBot sends for a session, with changes.
func spec(session string, change object) object {
	s := object{
		"session_id": session, "cmd": "", "workdir": "/workspace", "timeout_sec": 30, "network": "off", "env": object{},
		"image": "rockchin/langbot-sandbox:latest", "host_path": nil, "host_path_mode": "rw", "mount_path": "/workspace",
		"extra_mounts": []any{}, "skill_name": nil, "persistent": false, "cpus": 1.0, "memory_mb": 512, "pids_limit": 128,
		"read_only_rootfs": true, "workspace_quota_mb": 0,
	}
	for k, v := range change {
		s[k] = v
	}
	return s
}

// result is a BoxExecutionResult.
type result struct {
	Session  string `json:"session_id"`
	Backend  string `json:"backend_name"`
	Status   string `json:"status"`
	Exit     *int   `json:"exit_code"`
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	Duration int    `json:"duration_ms"`
	Verdict  string `json:"verdict"`
}

func (r result) String() string {
	exit := "none"
	if r.Exit != nil {
		exit = fmt.Sprint(*r.Exit)
	}
	return fmt.Sprintf("%s, exit %s, verdict %s, stdout %.300q, stderr %.300q", r.Status, exit, r.Verdict, r.Stdout, r.Stderr)
}

// exec runs a command, which must come to an end of its own or by its timeout.
func (b *bot) exec(s object, cmd string) result {
	b.w.t.Helper()
	r, err := b.tryExec(s, cmd)
	if err != nil {
		b.w.t.Fatalf("box_exec of %.100q: %v", cmd, err)
	}
	return r
}

func (b *bot) tryExec(s object, cmd string) (r result, err error) {
	with := object{}
	for k, v := range s {
		with[k] = v
	}
	with["cmd"] = cmd
	err = b.try("box_exec", with, &r)
	return r, err
}

// sh runs a command that must succeed, and returns its output.
func (b *bot) sh(s object, cmd string) string {
	b.w.t.Helper()
	r := b.exec(s, cmd)
	if r.Status != "completed" || r.Exit == nil || *r.Exit != 0 {
		b.w.t.Fatalf("%.200q: %v", cmd, r)
	}
	return r.Stdout
}

// await polls until ok returns true. There is no event for it.
func (w *world) await(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("gave up waiting until %s", what)
		}
	}
}

// show is a value as JSON.
func show(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
