package langbot

import (
	"archive/zip"
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
)

// chunk is the size in which LangBot's client sends files.
const chunk = 16 << 10

// upload sends a file as LangBot's client does, and returns its key.
func (b *bot) upload(content []byte) string {
	b.w.t.Helper()
	sum := sha256.Sum256(content)
	key := hex.EncodeToString(sum[:8]) + "-" + hex.EncodeToString(sum[8:24]) + ".zip"
	amount := max(1, (len(content)+chunk-1)/chunk)
	for i := range amount {
		part := content[i*chunk : min(len(content), (i+1)*chunk)]
		err := b.Call(b.w.t.Context(), nil, "__file_chunk", object{"file_key": key, "file_length": len(content), "chunk_base64": base64.StdEncoding.EncodeToString(part), "chunk_index": i, "chunk_amount": amount, "chunk_size": chunk}, nil)
		if err != nil {
			b.w.t.Fatal(err)
		}
	}
	return key
}

// archive is a zip file of names and contents in turn.
func archive(t *testing.T, files ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for i := 0; i < len(files); i += 2 {
		w, err := z.Create(files[i])
		if err == nil {
			_, err = w.Write([]byte(files[i+1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestSkillInABox: a skill arrives as zip, is mounted where LangBot mounts it, is used and changed by the box,
// and the store sees the change.
func TestSkillInABox(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	var numbers string
	for i := range 30_000 {
		numbers += fmt.Sprintln(i * i)
	}
	key := b.upload(archive(t, "pack/SKILL.md", "---\nname: greet\ndescription: says hello\n---\nRun run.sh.\n", "pack/run.sh", "#!/bin/sh\necho hello from $(dirname $0)\n",
		"pack/big.txt", numbers))
	got := b.call("box_install_skill_zip", object{"file_key": key, "filename": "greet.zip", "source_paths": []string{}})
	skills := got["skills"].([]any)
	if len(skills) != 1 || skills[0].(object)["name"] != "greet" {
		t.Fatalf("%s", show(got))
	}
	root := skills[0].(object)["package_root"].(string)
	s := spec("s", object{"extra_mounts": []object{{"host_path": root, "mount_path": "/workspace/.skills/greet", "mode": "rw"}}})
	if out := b.sh(s, "sh .skills/greet/run.sh; echo noted > .skills/greet/note; md5sum < .skills/greet/big.txt"); out != fmt.Sprintf("hello from .skills/greet\n%x  -", md5.Sum([]byte(numbers))) {
		t.Errorf("%q", out)
	}
	if out := b.call("box_read_skill_file", object{"name": "greet", "path": "note"}); out["content"] != "noted\n" {
		t.Errorf("%v", out)
	}
	b.call("box_write_skill_file", object{"name": "greet", "path": "note", "content": "for the box"})
	if out := b.sh(s, "cat .skills/greet/note"); out != "for the box" {
		t.Errorf("%q", out)
	}
	// A box leads the store nowhere: links, FIFOs and devices are not followed or read.
	b.sh(s, "cd .skills/greet; ln -s /etc/passwd link; ln -s / dir; mkfifo fifo; ln -s ../../../../../../../../etc/shadow up")
	for _, path := range []string{"link", "dir/etc/passwd", "fifo", "up"} {
		b.refused("BoxValidationError", "box_read_skill_file", object{"name": "greet", "path": path})
	}
	for _, path := range []string{"dir/tmp/x", "../x", "/etc/x", "link/x"} {
		b.refused("BoxValidationError", "box_write_skill_file", object{"name": "greet", "path": path, "content": "x"})
	}
	// Another workspace may not mount it, by whatever name.
	other := b.w.bot("i", "v")
	for _, path := range []string{root, root + "/..", strings.Replace(root, "/greet", "", 1), strings.SplitAfter(root, "/tenants/")[0]} {
		err := other.try("box_create_session", spec("s", object{"extra_mounts": []object{{"host_path": path, "mount_path": "/workspace/.skills/greet", "mode": "rw"}}}), nil)
		if err == nil {
			t.Errorf("the skills of another workspace were mounted as %s", path)
		}
	}
	// They survive the daemon, and go with the skill.
	b.w.again()
	b = b.w.bot("i", "w")
	if out := b.sh(s, "cat .skills/greet/note"); out != "for the box" {
		t.Errorf("%q", out)
	}
	b.call("box_delete_skill", object{"name": "greet"})
	if list := b.call("box_list_skills", object{}); len(list["skills"].([]any)) != 0 {
		t.Errorf("%v", list)
	}
}

// TestSkillNamesInABox: a box that may write to a skill takes no other's name, although its
// skill is the older one, and cannot make its own stay.
func TestSkillNamesInABox(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	roots := make(map[string]string)
	for _, name := range []string{"evil", "victim"} {
		key := b.upload(archive(t, "SKILL.md", "---\nname: "+name+"\n---\n"+name))
		got := b.call("box_install_skill_zip", object{"file_key": key, "filename": name + ".zip"})
		roots[name] = got["skills"].([]any)[0].(object)["package_root"].(string)
	}
	s := spec("s", object{"extra_mounts": []object{{"host_path": roots["evil"], "mount_path": "/workspace/.skills/evil", "mode": "rw"}}})
	names := func() string {
		var all string
		for _, l := range b.call("box_list_skills", object{})["skills"].([]any) {
			all += fmt.Sprintln(l.(object)["name"], l.(object)["package_root"], l.(object)["instructions"])
		}
		return all
	}
	for _, do := range []string{
		`printf -- '---\nname: victim\n---\nevil' > SKILL.md; touch -d 2100-01-01 SKILL.md . 2>/dev/null`,
		"rm SKILL.md; mkdir victim; printf -- '---\nname: victim\n---\nevil' > victim/SKILL.md",
		"cd ..; mv evil victim; mv evil/victim .; rmdir evil; rm -rf evil; mkdir -p evil victim; printf evil > victim/SKILL.md",
		"mkdir -p ../evil/../../.boxd-names; ln -s evil-upload ../.boxd-names/victim; ln -s ../victim-upload victim",
	} {
		b.exec(s, "cd .skills/evil; "+do)
		if got := names(); strings.Count(got, "victim ") != 1 || !strings.Contains(got, "victim "+roots["victim"]+" victim\n") {
			t.Errorf("after %s there is\n%s", do, got)
		}
		got := b.call("box_get_skill", object{"name": "victim"})["skill"].(object)
		if got["package_root"] != roots["victim"] || got["instructions"] != "victim" {
			t.Errorf("after %s victim is %s", do, show(got))
		}
	}
	b.sh(s, "cd .skills/evil; rm -rf SKILL.md; mkfifo SKILL.md")
	b.call("box_delete_skill", object{"name": "evil"})
	if got := names(); strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, "victim ") {
		t.Errorf("there is %s", got)
	}
	if out := b.sh(s, "ls -A .skills/evil; mkdir .skills/evil/x 2>/dev/null || echo gone"); out != "gone" {
		t.Errorf("what was deleted is there for the box: %q", out)
	}
}

// TestSkillLinksInABox: with skills in a directory of the host, what a box puts into its
// skill leads no mount to another's, to the store's own files or out of the workspace.
func TestSkillLinksInABox(t *testing.T) {
	root := t.TempDir()
	if err := os.Chown(root, sharedOwner, sharedOwner); err != nil {
		t.Fatal(err)
	}
	w := begin(t, "--allow-mount-root", root, "--config", configFile(t, "langbot: {skills_dir: "+root+"/skills, skills_size: 0}\n"))
	w.bot("i", "v").call("box_create_skill", object{"skill": object{"name": "secret", "instructions": "x"}})
	b := w.bot("i", "w")
	b.call("box_create_skill", object{"skill": object{"name": "victim", "instructions": "x"}})
	skill := b.call("box_create_skill", object{"skill": object{"name": "evil", "instructions": "x"}})["skill"].(object)
	dir := skill["package_root"].(string)
	with := func(session, source string) object {
		return spec(session, object{"cmd": "true", "extra_mounts": []object{{"host_path": source, "mount_path": "/workspace/.skills/evil", "mode": "rw"}}})
	}
	if out := b.sh(with("s", dir), "cd .skills/evil; mkdir -p real/sub; ln -s .. up; ln -s ../.boxd-names names; ln -s ../victim victim; ln -s ../.. all; ln -s real in; ls"); !strings.Contains(out, "victim") {
		t.Fatalf("%q", out)
	}
	for _, name := range []string{"up", "names", "victim", "all", "all/../victim", "in", "in/sub", "up/evil"} {
		if m := b.refused("BoxValidationError", "box_exec", with("t", dir+"/"+name)); !strings.Contains(m, "symlink") {
			t.Errorf("%s: %s", name, m)
		}
	}
	if out := b.sh(with("t", dir+"/real"), "ls .skills/evil"); out != "sub" {
		t.Errorf("%q", out)
	}
}

// TestSkillQuota: skills have a limit that neither the store nor a box gets past.
func TestSkillQuota(t *testing.T) {
	b := begin(t, "--config", configFile(t, "langbot: {skills_size: 8M}\n")).bot("i", "w")
	b.call("box_create_skill", object{"skill": object{"name": "s", "instructions": "x"}})
	root := b.call("box_get_skill", object{"name": "s"})["skill"].(object)["package_root"].(string)
	s := spec("s", object{"extra_mounts": []object{{"host_path": root, "mount_path": "/workspace/.skills/s", "mode": "rw"}}})
	if r := b.exec(s, "head -c 20M /dev/zero > .skills/s/big"); *r.Exit == 0 || r.Verdict != "disk-quota" && r.Stderr == "" {
		t.Errorf("%v", r)
	}
	m := b.refused("BoxValidationError", "box_write_skill_file", object{"name": "s", "path": "more", "content": strings.Repeat("x", 1<<20)})
	if !strings.Contains(m, "space") && !strings.Contains(m, "quota") && !strings.Contains(m, "full") {
		t.Errorf("%q", m)
	}
	if list := b.call("box_list_skill_files", object{"name": "s"}); strings.Contains(show(list), "more") {
		t.Errorf("a file that could not be written is there: %s", show(list))
	}
	b.sh(s, "rm .skills/s/big")
	b.call("box_write_skill_file", object{"name": "s", "path": "more", "content": strings.Repeat("x", 1<<20)})
	other := b.w.bot("i", "v")
	other.call("box_create_skill", object{"skill": object{"name": "s", "instructions": strings.Repeat("x", 1<<19)}})
}

// TestHostileZip: nothing of an archive that breaks a rule is installed.
func TestHostileZip(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	many := []string{"SKILL.md", "x"}
	for i := range 10001 {
		many = append(many, fmt.Sprint("f", i), "")
	}
	skill := []string{"SKILL.md", "---\nname: evil\n---\n"}
	with := func(files ...string) []byte { return archive(t, append(skill[:2:2], files...)...) }
	whole := with("a", "b")
	for what, content := range map[string][]byte{
		"..": with("../escape", "x"), "absolute": with("/tmp/escape", "x"), "drive": with("C:/x", "x"), "NUL": with("a\x00b", "x"), "twice": with("a", "1", "a", "2"),
		"file and directory": with("a", "1", "a/b", "2"), "many": archive(t, many...), "a bomb": with("bomb", strings.Repeat("\x00", 15<<20)),
		"truncated": whole[:len(whole)-10], "empty": {}, "no zip": []byte("hello"), "deep ..": with("a/../../escape", "x"), "backslashes": with(`..\escape`, "x"),
	} {
		for _, action := range []string{"box_preview_skill_zip", "box_install_skill_zip"} {
			var out object
			err := b.try(action, object{"file_key": b.upload(content), "filename": "evil.zip"}, &out)
			if err == nil || !strings.HasPrefix(err.Error(), "BoxValidationError: ") {
				t.Errorf("%s of a zip with %s: %v, %v", action, what, out, err)
			}
		}
	}
	if list := b.call("box_list_skills", object{}); len(list["skills"].([]any)) != 0 {
		t.Errorf("%v", list)
	}
	// A key is of the connection that sent it, and used once.
	key := b.upload(whole)
	other := b.w.bot("i", "w")
	other.refused("BoxValidationError", "box_install_skill_zip", object{"file_key": key})
	b.call("box_install_skill_zip", object{"file_key": key})
	b.refused("BoxValidationError", "box_install_skill_zip", object{"file_key": key})
}
