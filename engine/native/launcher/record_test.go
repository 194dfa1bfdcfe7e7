package launcher

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"golang.org/x/sys/unix"
)

func goodRecord() boxRecord {
	return boxRecord{
		Version: recordVersion, ID: "one", Spec: engine.Spec{}.WithDefaults(), PID: 2, Start: 3, BootID: "b",
		IDBase: idBase + 7*idRange, Cgroup: "x.one",
		Mounts: []mounted{{Mount: engine.Mount{Source: "/srv", Target: "/data"}, ID: 9}},
	}
}

func TestParseRecord(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(r *boxRecord)
		ok     bool
	}{
		{"good", func(*boxRecord) {}, true},
		{"version", func(r *boxRecord) { r.Version++ }, false},
		{"no pid", func(r *boxRecord) { r.PID = 0 }, false},
		{"process 1", func(r *boxRecord) { r.PID = 1 }, false},
		{"no start", func(r *boxRecord) { r.Start = 0 }, false},
		{"no boot", func(r *boxRecord) { r.BootID = "" }, false},
		{"no cgroup", func(r *boxRecord) { r.Cgroup = "" }, false},
		{"root's ids", func(r *boxRecord) { r.IDBase = 0 }, false},
		{"odd ids", func(r *boxRecord) { r.IDBase++ }, false},
		{"ids above all", func(r *boxRecord) { r.IDBase = idBase + idRanges*idRange }, false},
		{"name", func(r *boxRecord) { r.ID = "../x" }, false},
		{"limits", func(r *boxRecord) { r.Spec.Limits.Memory = 1 }, false},
		{"target", func(r *boxRecord) { r.Mounts[0].Target = "/../x" }, false},
	} {
		r := goodRecord()
		c.change(&r)
		text, err := json.Marshal(&r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseRecord(text); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestRecordOfOlderLauncher: a record that names no engine is of a launcher that had only one.
func TestRecordOfOlderLauncher(t *testing.T) {
	old := goodRecord()
	old.Spec.Engine, old.Spec.Isolation = "", ""
	text, err := json.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	r, err := parseRecord(text)
	if err != nil || kindOf(r.Spec) != (kind{spec.EngineNative, spec.IsolationNamespaces}) {
		t.Errorf("read as %+v, %v", r, err)
	}
}

func FuzzParseRecord(f *testing.F) {
	text, _ := json.Marshal(goodRecord())
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := parseRecord(text)
		if err == nil && (r.PID <= 1 || r.IDBase < idBase || r.Spec.Validate() != nil) {
			t.Errorf("taken: %+v", r)
		}
	})
}

// TestFindService: an instance of a service is found, and not swept; one whose launcher
// lives is refused.
func TestFindService(t *testing.T) {
	state := t.TempDir()
	if i, err := findService(state); i != nil || err != nil {
		t.Errorf("found %v, %v in an empty directory", i, err)
	}
	dir := filepath.Join(state, "run-a")
	if err := os.MkdirAll(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{serviceName, "lock"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := sweep(t.Context(), state, nil); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
	i, err := findService(state)
	if err != nil || i == nil || i.dir != dir {
		t.Fatalf("found %v, %v", i, err)
	}
	defer i.lock.Close()
	for want := range int64(3) {
		if n, err := i.nextGeneration(); n != want || err != nil {
			t.Errorf("generation %d, %v, want %d", n, err, want)
		}
	}
	began := time.Now()
	if _, err := findService(state); err == nil || !strings.Contains(err.Error(), "another launcher service") {
		t.Errorf("while its launcher lives, after %v: %v", time.Since(began), err)
	}
}

func TestParseService(t *testing.T) {
	for _, c := range []struct {
		args     string
		uid, gid int
		ok       bool
	}{
		{"--state-dir /run/x --client 12:34", 12, 34, true},
		{"--state-dir /run/x --client 54321", 54321, 54321, true},
		{"--state-dir /run/x --client root", 0, 0, true},
		{"--client root:root --prepared --state-dir /run/x", 0, 0, true},
		{"--state-dir run/x --client 1", 0, 0, false},
		{"--state-dir /run/x", 0, 0, false},
		{"--client 1", 0, 0, false},
		{"--state-dir /run/x --client -1", 0, 0, false},
		{"--state-dir /run/x --client no-such-user-here", 0, 0, false},
		{"--state-dir /run/x --client", 0, 0, false},
		{"--else x", 0, 0, false},
	} {
		o, err := ParseService(strings.Fields(c.args))
		if (err == nil) != c.ok || c.ok && (o.ClientUID != c.uid || o.ClientGID != c.gid) {
			t.Errorf("%q: %+v, %v", c.args, o, err)
		}
		if _, isConfig := errors.AsType[*ConfigError](err); isConfig == c.ok {
			t.Errorf("%q: %T", c.args, err)
		}
	}
}

// TestConfigError: what the kernel says may pass, and is no mistake of the configuration.
func TestConfigError(t *testing.T) {
	_, isConfig := errors.AsType[*ConfigError](configError(fmt.Errorf("mount roots: %w", &os.PathError{Op: "openat2", Path: "launcher.yaml", Err: unix.EMFILE})))
	if isConfig || configError(nil) != nil {
		t.Error("EMFILE is a ConfigError, or nil is an error")
	}
}

// TestEvents: events that have not been taken are merged.
func TestEvents(t *testing.T) {
	e := newEvents()
	for n := range int64(5) {
		e.add("x.one", cgroups.MemoryLimit, n)
		e.add("x.two", cgroups.PIDsLimit, n)
	}
	got := e.take()
	if len(got) != 2 || got[eventKey{"one", engine.EventOOM}] != 4 || got[eventKey{"two", engine.EventPIDs}] != 4 {
		t.Errorf("pending: %v", got)
	}
	if len(e.take()) != 0 {
		t.Error("taken twice")
	}
}

// TestRecordTooLong: a record that could not be read back is not written, and the error
// blames the caller.
func TestRecordTooLong(t *testing.T) {
	b := newTestBox("b")
	b.dir = t.TempDir()
	b.record = &boxRecord{Spec: engine.Spec{Labels: map[string]string{"x": strings.Repeat("x", maxRecord)}}}
	if err := b.save(); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("recording too much: %v", err)
	}
	if files, _ := os.ReadDir(b.dir); len(files) > 0 {
		t.Errorf("files: %v", files)
	}
}
