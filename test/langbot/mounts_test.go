package langbot

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestHostPath: a missing shared directory is created. It belongs to the owner of its parent, and so do
// files that boxes write in it.
func TestHostPath(t *testing.T) {
	b := begin(t).bot("i", "w")
	dir := filepath.Join(b.w.shared, "default/tenants/x")
	s := spec("s", object{"host_path": dir})
	if out := b.sh(s, "pwd; mkdir -p out/deep; echo hello > out/deep/file; id -u"); out != "/workspace\n0" {
		t.Errorf("%q", out)
	}
	for _, name := range []string{dir, filepath.Dir(dir), filepath.Join(dir, "out/deep"), filepath.Join(dir, "out/deep/file")} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != sharedOwner || st.Gid != sharedOwner {
			t.Errorf("%s belongs to %d:%d, want %d", name, st.Uid, st.Gid, sharedOwner)
		}
	}
	// LangBot clears what boxes leave there.
	if err := asOwner(func() error { return os.RemoveAll(filepath.Join(dir, "out")) }); err != nil {
		t.Error(err)
	}
	if err := asOwner(func() error { return os.WriteFile(filepath.Join(dir, "inbox"), []byte("for the box"), 0o600) }); err != nil {
		t.Fatal(err)
	}
	if out := b.sh(s, "ls; cat inbox; rm inbox"); out != "inbox\nfor the box" {
		t.Errorf("%q", out)
	}
	b.call("box_delete_session", object{"session_id": "s"})
	if !exists(dir) {
		t.Error("the directory is gone with the session")
	}
	ro := spec("ro", object{"host_path": dir, "host_path_mode": "ro"})
	if r := b.exec(ro, "echo x > file"); *r.Exit == 0 {
		t.Errorf("a read-only workspace was written: %v", r)
	}
	none := spec("none", object{"host_path": dir, "host_path_mode": "none", "workdir": "/tmp"})
	if out := b.sh(none, "ls /workspace 2>/dev/null | wc -l"); out != "0" {
		t.Errorf("%q", out)
	}
	at := spec("at", object{"host_path": dir, "mount_path": "/data/x", "workdir": "/data/x/sub"})
	if out := b.sh(at, "pwd; echo 1 > f"); out != "/data/x/sub" || !exists(filepath.Join(dir, "sub/f")) {
		t.Errorf("%q", out)
	}
	own := spec("own", object{"mount_path": "/data", "workdir": nil})
	if out := b.sh(own, "pwd; touch f && echo yes"); out != "/data\nyes" {
		t.Errorf("%q", out)
	}
	b.refused("BoxValidationError", "box_create_session", spec("w", object{"host_path": dir, "workdir": "/tmp"}))
}

// TestAllowedRoots: nothing of the host is mounted that the operator has not allowed,
// by whatever name.
func TestAllowedRoots(t *testing.T) {
	b := begin(t).bot("i", "w")
	secret := filepath.Join(filepath.Dir(b.w.shared), "secret")
	if err := os.Mkdir(secret, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(b.w.shared, "link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"/", "/etc", "/root", "/tmp", "/var/run", secret, b.w.shared + "/../secret", b.w.shared + "/link", b.w.shared + "/link/new", b.w.shared + "x",
		"C:\\Windows", "/proc/self/root" + b.w.shared, b.w.State(), filepath.Join(b.w.State(), "boxd.sock"), "/" + b.w.shared + "/../../etc",
	} {
		b.refused("BoxValidationError", "box_create_session", spec("host", object{"host_path": path}))
		for _, mode := range []string{"ro", "rw"} {
			b.refused("BoxValidationError", "box_create_session", spec("extra", object{"extra_mounts": []object{{"host_path": path, "mount_path": "/mnt/x", "mode": mode}}}))
		}
	}
	for _, target := range []string{"/", "/proc", "/dev", "/etc/passwd", "/workspace/../etc"} {
		err := b.try("box_create_session", spec("target", object{"extra_mounts": []object{{"host_path": b.w.shared, "mount_path": target}}}), nil)
		if err == nil {
			t.Errorf("a mount at %s was accepted", target)
		}
	}
	if n := len(b.call("box_get_sessions", object{})["sessions"].([]any)); n != 0 {
		t.Errorf("%d sessions are left of what was refused", n)
	}
	if exists(filepath.Join(secret, "new")) {
		t.Error("a directory was made through a symlink that leads out")
	}
	// LangBot may narrow the list, and never widen it.
	narrow := filepath.Join(b.w.shared, "narrow")
	b.call("box_init", object{"local": object{"allowed_mount_roots": []string{narrow, "/etc"}}})
	b.refused("BoxValidationError", "box_create_session", spec("host", object{"host_path": filepath.Join(b.w.shared, "wide")}))
	b.refused("BoxValidationError", "box_create_session", spec("host", object{"host_path": "/etc"}))
	b.call("box_create_session", spec("host", object{"host_path": filepath.Join(narrow, "x")}))
}

// TestExtraMounts are attached to and taken from a session that goes on.
func TestExtraMounts(t *testing.T) {
	b := begin(t).bot("i", "w")
	for _, name := range []string{"ws", "a", "b"} {
		dir := filepath.Join(b.w.shared, name)
		if err := asOwner(func() error { return os.Mkdir(dir, 0o755) }); err != nil {
			t.Fatal(err)
		}
		if err := asOwner(func() error { return os.WriteFile(filepath.Join(dir, "is"), []byte(name), 0o644) }); err != nil {
			t.Fatal(err)
		}
	}
	mount := func(name, mode string) object {
		return object{"host_path": filepath.Join(b.w.shared, name), "mount_path": "/workspace/.skills/" + name, "mode": mode}
	}
	with := func(mounts ...object) object {
		return spec("s", object{"host_path": filepath.Join(b.w.shared, "ws"), "extra_mounts": append([]object{}, mounts...)})
	}
	b.sh(with(), "echo kept > /tmp/f")
	b.launch("s", "p", "sh", "-c", `while read -r f; do cat "$f"; echo; done`)
	if out := b.sh(with(mount("a", "rw")), "cat /tmp/f .skills/a/is; echo new > .skills/a/made"); out != "kept\na" {
		t.Errorf("%q", out)
	}
	// A process that runs already sees them.
	ws := b.attach("s", "p")
	say(t, ws, "/workspace/.skills/a/is")
	if got := next(t, ws); got != "a\n" {
		t.Errorf("%q", got)
	}
	if out := b.sh(with(mount("b", "ro"), mount("a", "none")), "ls .skills/a; cat /tmp/f .skills/b/is; touch .skills/b/x 2>/dev/null || echo read-only"); out != "kept\nbread-only" {
		t.Errorf("%q", out)
	}
	if r := b.exec(with(), "cat /tmp/f; ls .skills/b"); !strings.HasPrefix(r.Stdout, "kept") || strings.Contains(r.Stdout, "is") {
		t.Errorf("%v", r)
	}
	info, err := os.Stat(filepath.Join(b.w.shared, "a/made"))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != sharedOwner {
		t.Errorf("what was written to a mount belongs to %d", st.Uid)
	}
	// A mount point that a box has replaced by a symlink leads nowhere.
	b.sh(with(), "rm -rf .skills; ln -s /etc .skills")
	if err := b.try("box_create_session", with(mount("a", "rw")), nil); err == nil {
		t.Error("a mount went through a symlink of the box")
	}
	if out := b.sh(with(), "cat /tmp/f"); out != "kept" {
		t.Errorf("after a mount that was refused: %q", out)
	}
}
