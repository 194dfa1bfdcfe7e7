package langbot

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/langbot/protocol"
)

// logBuffer is a log that tests can read.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// logged makes a server write its log to a buffer.
func logged(l *logBuffer) func(*Options) {
	return func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(l, nil)) }
}

// writeFile writes a file as an operator would, and creates its parent directories.
func (b *bench) writeFile(name, content string) {
	b.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		b.Fatal(err)
	}
}

// TestSkillsRoot: skills are in the directory that box_init names, with the names and the layout of
// the reference server, if the operator allows mounts there.
func TestSkillsRoot(t *testing.T) {
	const inVolume = skillsPrefix
	for _, c := range []struct {
		name  string
		local func(shared string) object
		want  func(shared string) string // contains tenants/…
		log   string
	}{
		{"host_root alone", func(s string) object { return object{"host_root": s} },
			func(s string) string { return s + "/skills" }, ""},
		{"relative", func(s string) object { return object{"host_root": s, "skills_root": "custom-skills"} },
			func(s string) string { return s + "/custom-skills" }, ""},
		{"absolute", func(s string) object { return object{"host_root": s + "/host", "skills_root": s + "/else/where/"} },
			func(s string) string { return s + "/else/where" }, ""},
		{"absolute without host_root", func(s string) object { return object{"skills_root": s + "/mine"} },
			func(s string) string { return s + "/mine" }, ""},
		{"a narrower list of the client's own", func(s string) object {
			return object{"skills_root": s + "/mine", "allowed_mount_roots": []string{s + "/other"}}
		}, func(s string) string { return s + "/mine" }, ""},
		{"outside", func(s string) object {
			return object{"host_root": s, "skills_root": filepath.Dir(s) + "/skills", "allowed_mount_roots": []string{"/", filepath.Dir(s)}, "default_workspace": s + "/default"}
		}, func(string) string { return inVolume }, "outside of the operator's allowed_mount_roots"},
		{"up and out", func(s string) object { return object{"host_root": s, "skills_root": "../skills"} },
			func(string) string { return inVolume }, "outside of the operator's allowed_mount_roots"},
		{"a name that only begins like the root", func(s string) object { return object{"skills_root": s + "2/skills"} },
			func(string) string { return inVolume }, "outside of the operator's allowed_mount_roots"},
		{"where boxes write", func(s string) object { return object{"host_root": s, "skills_root": "default/x"} },
			func(string) string { return inVolume }, "in which boxes write"},
		{"the workspaces themselves", func(s string) object { return object{"host_root": s, "skills_root": "default"} },
			func(string) string { return inVolume }, "in which boxes write"},
		{"relative to nothing", func(string) object { return object{"host_root": "./data/box", "skills_root": "skills"} },
			func(string) string { return inVolume }, "is relative"},
		{"nothing", func(string) object { return object{"host_root": ""} }, func(string) string { return inVolume }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log logBuffer
			b := open(t, logged(&log))
			shared := b.path("shared")
			b.call("box_init", object{"local": c.local(shared)})
			want := c.want(shared) + "/tenants/" + at.Namespace() + "/one"
			if s := b.call("box_create_skill", create("one"))["skill"].(object); s["package_root"] != want {
				t.Errorf("package_root %v, want %s", s["package_root"], want)
			}
			_, err := os.Stat(want + "/SKILL.md")
			if onHost := c.want(shared) != inVolume; onHost != (err == nil) || onHost != (len(b.host.VolumeNames()) == 0) {
				t.Errorf("on the host: %v, volumes: %v", err, b.host.VolumeNames())
			}
			if got := log.String(); c.log != "" && !strings.Contains(got, c.log) || c.log == "" && strings.Contains(got, "is not used") {
				t.Errorf("the log says %s", got)
			}
			if _, err := os.Stat(filepath.Dir(shared) + "/skills/tenants"); err == nil {
				t.Error("a directory outside of the root was made")
			}
		})
	}
}

// TestExistingSkills: skills that an operator put there are listed, used and changed in place, and
// mounted into boxes; other workspaces do not see them.
func TestExistingSkills(t *testing.T) {
	b := open(t)
	shared := b.path("shared")
	own := shared + "/custom-skills/tenants/" + at.Namespace()
	for _, name := range []string{"alpha", "group/beta"} {
		b.writeFile(own+"/"+name+"/SKILL.md", "---\nname: "+filepath.Base(name)+"\ndescription: d\n---\n\nold\n")
	}
	b.writeFile(own+"/plain/SKILL.md", "Just a body\n")
	if l := b.call("box_list_skills", object{})["skills"].([]any); len(l) != 0 {
		t.Errorf("before box_init: %v", l)
	}
	local := object{"host_root": shared, "skills_root": "custom-skills"}
	for range 2 { // clients send it on each connection
		b.call("box_init", object{"local": local})
		if l := b.call("box_list_skills", object{})["skills"].([]any); len(l) != 3 {
			t.Fatalf("%v", l)
		}
	}
	s := b.call("box_update_skill", object{"name": "beta", "skill": object{"instructions": "new"}})["skill"].(object)
	text, err := os.ReadFile(own + "/group/beta/SKILL.md")
	if s["package_root"] != own+"/group/beta" || err != nil || !strings.Contains(string(text), "new") {
		t.Errorf("%v; %s, %v", s, text, err)
	}
	mount := func(source string) object {
		return specOf("s", object{"cmd": "true", "extra_mounts": []any{object{"host_path": source, "mount_path": "/workspace/.skills/x", "mode": "rw"}}})
	}
	b.call("box_exec", mount(own+"/alpha"))
	if m := b.host.Only().Spec().Mounts[1]; m.Source != own+"/alpha" || m.NoLinks != own || m.Within != shared || m.Volume != "" {
		t.Errorf("%+v", m)
	}
	b.call("box_delete_skill", object{"name": "alpha"})
	if _, err := os.Stat(own + "/alpha"); err == nil {
		t.Error("what was deleted is there")
	}
	other := at
	other.Workspace = "v"
	if l := b.callAt(other, "box_list_skills", object{})["skills"].([]any); len(l) != 0 {
		t.Errorf("another workspace has %v", l)
	}
	if _, err := os.Stat(shared + "/custom-skills/tenants/" + other.Namespace()); err != nil {
		t.Errorf("a list makes the directory, as in the reference server: %v", err)
	}
	b.refused(protocol.BoxValidation, "box_scan_skill_directory", object{"path": shared + "/custom-skills/tenants/" + other.Namespace()})
	for _, dir := range []string{shared + "/custom-skills/tenants/" + other.Namespace(), shared + "/custom-skills", own, own + "/.boxd-names"} {
		b.refused(protocol.BoxValidation, "box_exec", mount(dir))
	}
}

// TestSkillsRootIsOneInstances: the directory that one instance names does not move another's skills,
// and the operator's directory takes precedence.
func TestSkillsRootIsOneInstances(t *testing.T) {
	b := open(t)
	b.call("box_init", object{"local": object{"host_root": b.path("shared")}})
	foreign := protocol.Context{Instance: "j", Workspace: "w", Generation: 1}
	if s := b.callAt(foreign, "box_create_skill", create("one"))["skill"].(object); !strings.HasPrefix(s["package_root"].(string), skillsPrefix) {
		t.Errorf("%v", s)
	}
	b = open(t, func(o *Options) { o.SkillsDir = o.Roots[0] + "/operator" })
	b.call("box_init", object{"local": object{"host_root": b.path("shared"), "skills_root": "client"}})
	if s := b.call("box_create_skill", create("one"))["skill"].(object); !strings.HasPrefix(s["package_root"].(string), b.path("shared/operator/")) {
		t.Errorf("%v", s)
	}
}

// TestSkillsRootMeasured: readiness measures the place where skills are kept.
func TestSkillsRootMeasured(t *testing.T) {
	p := &prober{}
	b := open(t, func(o *Options) { o.Prober = p })
	b.call("box_init", object{"local": object{"host_root": b.path("shared")}})
	b.server.Ready(context.Background())
	if want := (engine.Directory{Path: b.path("shared/skills"), Within: b.path("shared")}); p.where.Skills != want {
		t.Errorf("measured %+v, want %+v", p.where.Skills, want)
	}
}

// refusing is a storage whose directories cannot be written.
type refusing struct {
	engine.Storage
	err error
}

func (r *refusing) OpenDirectory(ctx context.Context, d engine.Directory) (*os.File, error) {
	if !d.ReadOnly && d.Volume == "" && r.err != nil {
		return nil, r.err
	}
	return r.Storage.OpenDirectory(ctx, d)
}

// TestSkillsRootRefused: if the engine may not write the directory, because it is root's, for
// example, skills stay in volumes. If the engine does not answer, nothing is decided.
func TestSkillsRootRefused(t *testing.T) {
	var log logBuffer
	b := open(t, logged(&log))
	storage := &refusing{b.client, &engine.FieldError{Field: "directory.path", Value: `"x"`, Rule: "belongs to root"}}
	b.storage = storage
	b.restart()
	init := object{"local": object{"host_root": b.path("shared")}}
	b.call("box_init", init)
	if s := b.call("box_create_skill", create("one"))["skill"].(object); !strings.HasPrefix(s["package_root"].(string), skillsPrefix) || !strings.Contains(log.String(), "belongs to root") {
		t.Errorf("%v; log: %s", s, log.String())
	}
	for _, err := range []error{engine.ErrNoLauncher, context.DeadlineExceeded, errors.New("I/O error"), io.ErrUnexpectedEOF} {
		storage.err = err
		if _, err := b.try(context.Background(), nil, "box_init", init); err == nil {
			t.Errorf("%v: box_init went on", storage.err)
		}
	}
	storage.err = nil
	b.call("box_init", init)
	if s := b.call("box_create_skill", create("one"))["skill"].(object); s["package_root"] != b.path("shared/skills/tenants/"+at.Namespace()+"/one") {
		t.Errorf("%v", s)
	}
}
