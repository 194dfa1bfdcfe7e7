package langbot

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/mounts"
)

func create(name string) object {
	return object{"skill": object{"name": name, "description": "d", "instructions": "do it"}}
}

// TestSkillVolumes: a workspace gets a volume, of the currently configured size, with its first skill.
func TestSkillVolumes(t *testing.T) {
	b := open(t, func(o *Options) { o.SkillsSize, o.SkillsInodes = 8<<20, 100 })
	if l := b.call("box_list_skills", object{})["skills"].([]any); len(l) != 0 || len(b.host.VolumeNames()) != 0 {
		t.Errorf("%v, volumes %v", l, b.host.VolumeNames())
	}
	s := b.call("box_create_skill", create("one"))["skill"].(object)
	name := "skills-" + at.Namespace()
	if v := b.host.Volume(name); v.Bytes != 8<<20 || v.Inodes != 100 || len(b.host.VolumeNames()) != 1 {
		t.Errorf("%v", b.host.VolumeNames())
	}
	if s["package_root"] != "/boxd/skills/tenants/"+at.Namespace()+"/one" {
		t.Errorf("%v", s)
	}
	other, later := at, at
	other.Workspace, later.Generation = "v", 2
	if l := b.callAt(other, "box_list_skills", object{})["skills"].([]any); len(l) != 0 {
		t.Errorf("another workspace has %v", l)
	}
	if l := b.callAt(later, "box_list_skills", object{})["skills"].([]any); len(l) != 1 {
		t.Errorf("the next generation has %v", l)
	}
	b.o.SkillsSize = 16 << 20
	b.restart()
	b.callAt(later, "box_list_skills", object{})
	if v := b.host.Volume(name); v.Bytes != 16<<20 {
		t.Errorf("%v", v)
	}
	b.o.SkillsSize = 4 << 20 // smaller: the volume may be unable to shrink
	b.restart()
	if l := b.callAt(later, "box_list_skills", object{})["skills"].([]any); len(l) != 1 || b.host.Volume(name).Bytes != 16<<20 {
		t.Errorf("%v, %v", l, b.host.VolumeNames())
	}
	// A client mounts its package_root.
	b.callAt(later, "box_exec", specOf("s", object{"cmd": "true", "extra_mounts": []any{object{"host_path": s["package_root"], "mount_path": "/workspace/.skills/one", "mode": "rw"}}}))
	if m := b.host.Only().Spec().Mounts; len(m) != 2 || m[1].Volume != name || m[1].Source != "/one" || m[1].ReadOnly {
		t.Errorf("%+v", m)
	}
}

func TestSkillsDir(t *testing.T) {
	b := open(t, func(o *Options) { o.SkillsDir = o.Roots[0] + "/skills" })
	s := b.call("box_create_skill", create("one"))["skill"].(object)
	if want := b.path("shared/skills/tenants/" + at.Namespace() + "/one"); s["package_root"] != want {
		t.Errorf("%v, want %s", s, want)
	}
	if _, err := os.Stat(s["package_root"].(string) + "/SKILL.md"); err != nil {
		t.Error(err)
	}
	if len(b.host.VolumeNames()) != 0 {
		t.Errorf("%v", b.host.VolumeNames())
	}
	mount := func(source string) object {
		return specOf("s", object{"cmd": "true", "extra_mounts": []any{object{"host_path": source, "mount_path": "/workspace/.skills/one", "mode": "rw"}}})
	}
	b.call("box_exec", mount(s["package_root"].(string)))
	// Even through a symlink of a box, nothing but a skill is mounted.
	m := b.host.Only().Spec().Mounts[1]
	own := path.Dir(s["package_root"].(string))
	if m.NoLinks != own || m.Within != b.path("shared") {
		t.Errorf("%+v", m)
	}
	for name, to := range map[string]string{"up": "..", "names": "../.boxd-names", "other": "../../ws-of-another", "self": "."} {
		m.Source = own + "/one/" + name
		if err := os.Symlink(to, m.Source); err != nil {
			t.Fatal(err)
		}
		if src, err := mounts.Open(m, nil); err == nil {
			t.Errorf("%s leads to %s", m.Source, src.Path)
			src.Close()
		}
	}
	b.call("box_init", object{"local": object{"allowed_mount_roots": []string{b.path("shared/mine")}}})
	b.call("box_delete_session", object{"session_id": "s"})
	b.call("box_exec", mount(s["package_root"].(string))) // the client does not choose where skills are
	b.call("box_init", object{"local": nil})
	b.refused(protocol.BoxValidation, "box_exec", mount(b.path("shared/skills/tenants/ws-of-another/one")))
	b.refused(protocol.BoxValidation, "box_exec", mount(b.path("shared/skills")))
	for _, dir := range []string{own, own + "/.boxd", own + "/.boxd/x", own + "/.boxd-names", own + "/one/../.boxd-names"} {
		b.refused(protocol.BoxValidation, "box_exec", mount(dir))
	}
}

// TestSkillsDirLimits: a directory of skills has its limits of bytes and files from the start, even
// one that was deleted and created again.
func TestSkillsDirLimits(t *testing.T) {
	b := open(t, func(o *Options) { o.SkillsDir, o.SkillsSize = o.Roots[0]+"/skills", 64<<20 })
	b.call("box_list_skills", object{})
	b.call("box_create_skill", create("one"))
	b.call("box_create_skill", create("two"))
	dir := b.path("shared/skills/tenants/" + at.Namespace())
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	b.call("box_list_skills", object{})
	b.call("box_create_skill", create("one"))
	want := fmt.Sprint(dir, " ", 64<<20, " ", 64<<20/(16<<10))
	if got := b.host.Limitings(); !slices.Equal(got, []string{want, want}) {
		t.Errorf("%q, want %q twice", got, want)
	}
}

// TestUploads: files belong to a connection, and the limit at its start bounds them.
func TestUploads(t *testing.T) {
	b := open(t)
	chunk := func(n int) object {
		return object{"file_key": "0123456789abcdef.zip", "file_length": n, "chunk_base64": base64.StdEncoding.EncodeToString(make([]byte, n)), "chunk_index": 0, "chunk_amount": 1, "chunk_size": 16384}
	}
	ctx := context.Background()
	if out, err := b.try(ctx, nil, "__file_chunk", chunk(2000)); err != nil || len(out) != 0 {
		t.Errorf("%v, %v", out, err)
	}
	b.refused(protocol.BoxValidation, "box_preview_skill_zip", object{"file_key": "0123456789abcdef.zip"}) // 2,000 zeros are no archive
	b.call("box_init", object{"limits": object{"max_rpc_file_bytes": 1000}})
	if _, err := b.try(ctx, nil, "__file_chunk", chunk(2000)); err != nil {
		t.Errorf("a connection that was open before: %v", err)
	}
	delete(b.conns, "i")
	if _, err := b.try(ctx, nil, "__file_chunk", chunk(2000)); err == nil || !strings.HasPrefix(err.Error(), "ValueError: ") {
		t.Errorf("one that was not: %v", err)
	}
}

// TestNoStorage: actions that need directories say so, and all others work.
func TestNoStorage(t *testing.T) {
	b := open(t)
	b.storage = nil
	b.restart()
	b.call("box_exec", cmd("s", "true"))
	if _, err := b.try(context.Background(), &at, "box_create_skill", create("one")); err == nil {
		t.Error("a skill was made nowhere")
	}
	if _, err := b.try(context.Background(), nil, "box_init", object{"local": object{"host_root": b.path("shared")}}); err == nil || !strings.HasPrefix(err.Error(), "BoxValidationError: ") {
		t.Errorf("%v", err)
	}
}
