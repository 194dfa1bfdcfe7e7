package langbot

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/langbot/protocol"
)

// TestSkillsRoot: an operator's skills, which belong to the user of LangBot, are used where
// they are, by the store and by boxes. A directory that leads out of the allowed root, or is
// root's, is not; skills are in a volume then, and the log says why.
func TestSkillsRoot(t *testing.T) {
	w := begin(t)
	b := w.bot("i", "w")
	ns := protocol.Context{Instance: "i", Workspace: "w", Generation: 1}.Namespace()
	outside := filepath.Join(filepath.Dir(w.shared), "outside")
	own := filepath.Join(w.shared, "custom-skills/tenants", ns)
	put := func(name, text string, uid int) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		for at := name; at != w.shared && at != filepath.Dir(w.shared); at = filepath.Dir(at) {
			if err := os.Lchown(at, uid, uid); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(own+"/greet/SKILL.md", "---\nname: greet\n---\n\nRun run.sh.\n", sharedOwner)
	put(own+"/greet/run.sh", "echo hello\n", sharedOwner)
	put(outside+"/tenants/"+ns+"/secret/SKILL.md", "---\nname: secret\n---\n", sharedOwner)
	put(w.shared+"/of-root/tenants/"+ns+"/rooted/SKILL.md", "---\nname: rooted\n---\n", 0)
	for name, to := range map[string]string{"out": outside, "up": "../outside", "within": "custom-skills"} {
		if err := os.Symlink(to, filepath.Join(w.shared, name)); err != nil {
			t.Fatal(err)
		}
	}
	root := func(skills string) {
		t.Helper()
		if err := b.Call(t.Context(), nil, "box_init", object{"local": object{"host_root": w.shared, "skills_root": skills}}, nil); err != nil {
			t.Fatal(err)
		}
	}

	root("custom-skills")
	s := b.call("box_get_skill", object{"name": "greet"})["skill"].(object)
	if s["package_root"] != own+"/greet" {
		t.Fatalf("%v", s)
	}
	session := spec("s", object{"extra_mounts": []object{{"host_path": own + "/greet", "mount_path": "/workspace/.skills/greet", "mode": "rw"}}})
	if out := b.sh(session, "sh .skills/greet/run.sh; echo noted > .skills/greet/note"); out != "hello" {
		t.Errorf("%q", out)
	}
	b.call("box_write_skill_file", object{"name": "greet", "path": "more/file", "content": "x"})
	for _, name := range []string{"note", "more/file"} {
		st, err := os.Stat(own + "/greet/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if uid := st.Sys().(*syscall.Stat_t).Uid; uid != sharedOwner {
			t.Errorf("%s belongs to %d: the user of LangBot cannot delete it", name, uid)
		}
	}
	b.call("box_create_skill", object{"skill": object{"name": "fresh", "instructions": "x"}})
	if st, err := os.Stat(own + "/fresh/SKILL.md"); err != nil || st.Sys().(*syscall.Stat_t).Uid != sharedOwner {
		t.Errorf("%v, %v", st, err)
	}

	root("within") // a symlink that stays in the root
	if list := show(b.call("box_list_skills", object{})); !strings.Contains(list, `"greet"`) {
		t.Errorf("%s", list)
	}
	for skills, why := range map[string]string{
		"out": "out", "up": "up", "of-root": "belongs to root", outside: "outside of the operator", w.shared + "/../outside": "outside of the operator",
	} {
		root(skills)
		if list := show(b.call("box_list_skills", object{})); strings.Contains(list, "secret") || strings.Contains(list, "rooted") || strings.Contains(list, "greet") {
			t.Errorf("%s: %s", skills, list)
		}
		name := "in-volume-" + strings.Trim(strings.ReplaceAll(filepath.Base(skills), ".", ""), "/")
		made := object{"name": name, "instructions": "x"}
		_ = b.try("box_delete_skill", object{"name": name}, nil) // of an earlier round
		if s := b.call("box_create_skill", object{"skill": made})["skill"].(object); !strings.HasPrefix(s["package_root"].(string), "/boxd/skills/") {
			t.Errorf("%s: %v", skills, s)
		}
		if log := w.LogTail(200); !strings.Contains(log, "is not used: they are in volumes") || !strings.Contains(log, why) {
			t.Errorf("%s: the log says\n%s", skills, log)
		}
	}
	if names, err := os.ReadDir(outside + "/tenants/" + ns); err != nil || len(names) != 1 {
		t.Errorf("something was made outside: %v, %v", names, err)
	}
}
