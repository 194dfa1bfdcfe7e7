package langbot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/langbot/protocol"
)

func TestInit(t *testing.T) {
	b := open(t)
	shared := b.path("shared")
	limits := func() object { return b.call("box_status", object{})["limits"].(object) }
	b.call("box_init", object{"enabled": true, "backend": "docker", "limits": object{"max_sessions": 5, "more": 1}, "docker": object{"cpu_limit_enabled": false}, "e2b": object{"api_key": "k"}})
	b.call("box_init", object{"local": object{"host_root": shared, "profile": "x", "workspace_quota_mb": 1}})
	if l := limits(); l["max_sessions"] != 5.0 || l["max_completed_processes"] != 256.0 {
		t.Errorf("another key has changed the limits: %v", l)
	}
	if _, err := os.Stat(shared + "/default"); err != nil {
		t.Error(err)
	}
	b.call("box_init", object{"limits": object{"max_managed_processes": 1}}) // replaces the key as a whole
	if l := limits(); l["max_sessions"] != 64.0 || l["max_managed_processes"] != 1.0 {
		t.Errorf("%v", l)
	}
	for data, want := range map[string]string{
		`{"limits": {"max_sessions": 5001}}`:     "ValueError: box.limits.max_sessions must be between 0 and 5000",
		`{"limits": {"max_sessions": "5"}}`:      "ValueError: box.limits.max_sessions must be an integer",
		`{"limits": []}`:                         "",
		`{"limits": [1]}`:                        "ValueError: ",
		`{"local": 5}`:                           "ValueError: box.local",
		`{"local": {"allowed_mount_roots": 5}}`:  "ValueError: box.local.allowed_mount_roots",
		`{"local": {"host_root": "/nowhere"}}`:   "BoxValidationError: box.local.default_workspace \"/nowhere/default\"",
		`{"local": {"host_root": "./data/box"}}`: "", // a daemon has no working directory of its own
		`{"local": {"default_workspace": "` + shared + `/x", "allowed_mount_roots": "/elsewhere"}}`:       "BoxValidationError: ",
		`{"local": {"default_workspace": "` + shared + `/x", "allowed_mount_roots": ["` + shared + `"]}}`: "",
		`{"local": {"host_root": "` + shared + `", "default_workspace": "../up"}}`:                        "BoxValidationError: ",
		`{"local": null, "limits": null}`: "",
	} {
		_, err := b.try(context.Background(), nil, "box_init", json.RawMessage(data))
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", data, err, want)
		}
	}
	if l := limits(); l["max_sessions"] != 64.0 {
		t.Errorf("a refused box_init has changed something: %v", l)
	}
	foreign := protocol.Context{Instance: "j", Workspace: "w", Generation: 1}
	if l := b.callAt(foreign, "box_status", object{})["limits"].(object); l["max_managed_processes"] != 64.0 {
		t.Errorf("what one instance says counts for another: %v", l)
	}
}

// TestInitNarrows: the client's roots can only narrow the operator's.
func TestInitNarrows(t *testing.T) {
	b := open(t)
	shared := b.path("shared")
	inside, outside := specOf("in", object{"host_path": shared + "/a/x"}), specOf("out", object{"host_path": shared + "/b"})
	b.call("box_init", object{"local": object{"allowed_mount_roots": []string{shared + "/a/", "/etc", "./rel"}}})
	b.call("box_create_session", inside)
	b.refused(protocol.BoxValidation, "box_create_session", outside)
	b.refused(protocol.BoxValidation, "box_create_session", specOf("etc", object{"host_path": "/etc/x"}))
	b.call("box_init", object{"local": object{"host_root": shared}})
	b.call("box_create_session", outside)
}

func TestInitFromEnvironment(t *testing.T) {
	b := open(t, func(o *Options) { o.Init = `{"limits": {"max_sessions": 7}}` })
	if l := b.call("box_status", object{})["limits"].(object); l["max_sessions"] != 7.0 {
		t.Errorf("%v", l)
	}
	for _, bad := range []string{"{", "5", `{"limits": {"max_sessions": -1}}`} {
		b := open(t, func(o *Options) { o.Init = bad })
		if l := b.call("box_status", object{})["limits"].(object); l["max_sessions"] != 64.0 {
			t.Errorf("%s: %v", bad, l)
		}
	}
}

// TestAdmissionFromEnvironment: the operator's settings hold before any client sends box_init, and
// no client can undo them.
func TestAdmissionFromEnvironment(t *testing.T) {
	for _, init := range []string{`{"admission": {"required": true}}`, `{"admission": {"requierd": true}}`, `{"limits": {"max_sessions": -1}, "admission": {"required": true}}`} {
		b := open(t, func(o *Options) { o.Init, o.Prober = init, &prober{} })
		for range 2 {
			if _, err := b.try(context.Background(), &at, "box_exec", cmd("s", "true")); err == nil || strings.HasPrefix(err.Error(), "BoxError") || len(b.host.IDs()) != 0 {
				t.Errorf("%s: a box without a grant: %v", init, err)
			}
			_, _ = b.try(context.Background(), nil, "box_init", object{"local": object{"host_root": b.path("shared")}}) // some are refused
		}
		_, _ = b.try(context.Background(), nil, "box_init", object{"admission": nil})
		if p, _ := b.server.book.Policy(); !p.Required {
			t.Errorf("%s: a client has switched it off", init)
		}
	}
	b := open(t, func(o *Options) { o.Init = `{"admission": {"required": false}}` })
	b.call("box_exec", cmd("s", "true"))
}

func TestSharedWorkspace(t *testing.T) {
	b := open(t)
	name := ".langbot-box-volume-probe-" + strings.Repeat("0a", 16)
	ask := func() (object, error) {
		return b.try(context.Background(), nil, "box_verify_shared_workspace", object{"marker_name": name})
	}
	if _, err := ask(); err == nil || !strings.HasPrefix(err.Error(), "BoxReadinessError: ") {
		t.Errorf("without a workspace: %v", err)
	}
	b.call("box_init", object{"local": object{"host_root": b.path("shared")}})
	file := b.path("shared/default/" + name)
	sum := sha256.Sum256([]byte("hello"))
	if err := os.WriteFile(file, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := ask()
	if err != nil || out["marker_name"] != name || out["size"] != 5.0 || out["sha256"] != hex.EncodeToString(sum[:]) {
		t.Errorf("%v, %v", out, err)
	}
	for what, make := range map[string]func() error{
		"missing":   func() error { return nil },
		"empty":     func() error { return os.WriteFile(file, nil, 0o600) },
		"large":     func() error { return os.WriteFile(file, []byte(strings.Repeat("x", 1025)), 0o600) },
		"symlink":   func() error { return os.Symlink("/etc/hostname", file) },
		"directory": func() error { return os.Mkdir(file, 0o700) },
		"fifo":      func() error { return syscall.Mkfifo(file, 0o600) },
	} {
		os.Remove(file)
		if err := make(); err != nil {
			t.Fatal(err)
		}
		if out, err := ask(); err == nil || !strings.HasPrefix(err.Error(), "BoxReadinessError: cannot read") {
			t.Errorf("%s: %v, %v", what, out, err)
		}
	}
	for _, bad := range []any{"x", "../" + name, name + "/", nil, 5} {
		if _, err := b.try(context.Background(), nil, "box_verify_shared_workspace", object{"marker_name": bad}); err == nil || !strings.HasPrefix(err.Error(), "BoxReadinessError: ") {
			t.Errorf("%v: %v", bad, err)
		}
	}
}
