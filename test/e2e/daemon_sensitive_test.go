package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// TestSensitive: what a session has seen stays with it and with what it can write to, across new
// boxes and the death of the daemon.
func TestSensitive(t *testing.T) {
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"secret", "shared"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(root, name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	secret, shared := filepath.Join(root, "secret"), filepath.Join(root, "shared")
	if err := os.WriteFile(filepath.Join(secret, "key"), []byte("secret\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../secret", filepath.Join(shared, "link")); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, "--allow-mount-root", root)
	d.env = append(d.env, "BOXD_SENSITIVE_MOUNT_ROOTS="+secret)
	d.start()
	is := func(session string) bool {
		t.Helper()
		var s struct {
			Sensitive *struct{ Since, Reason string }
		}
		if got := d.run("sessions", "show", session, "--json"); json.Unmarshal([]byte(got.stdout), &s) != nil {
			t.Fatalf("%v", got)
		}
		return s.Sensitive != nil
	}
	d.says(0, "", "exec", "plain", "-v", shared+":/shared", "--", "true")
	d.wantRefused(125, d.run("exec", "sly", "-v", shared+"/link:/x", "--", "cat", "/x/key"), "symlink")
	if is("plain") {
		t.Error("an ordinary mount makes a session sensitive")
	}
	d.says(0, "", "volumes", "create", "data", "--size", "4M")
	d.says(0, "secret\n", "exec", "lab", "-v", secret+":/secret:ro", "--volume", "data:/data", "--", "sh", "-c", "cp /secret/key /data && cat /data/key")
	d.says(0, "", "exec", "lab", "--", "cp", "/secret/key", ".")
	d.kill()
	d.start()
	d.says(0, "", "exec", "copy", "--", "true")
	d.says(0, "", "cp", "lab:key", "copy:")
	d.says(0, "", "volumes", "detach", "lab", "data")
	d.says(0, "secret\n", "exec", "reader", "--volume", "data:/data:ro", "--", "cat", "/data/key")
	if !is("lab") || !is("copy") || !is("reader") || is("plain") {
		t.Error("not all of lab, copy and reader are sensitive, or plain is")
	}
	d.says(0, "", "sessions", "sensitive", "copy")
	d.wantRefused(125, d.run("exec", "copy", "--sensitive=false", "--", "true"), "sensitive")
	// A box that shares what a sensitive one can write to, live.
	d.says(0, "", "exec", "writer", "-v", shared+":/shared", "--sensitive", "--", "true")
	if !is("plain") {
		t.Error("what shares a directory with a sensitive session is not sensitive")
	}
	d.says(0, shared+"\n", "sensitive", "ls", "-q")
	d.wantRefused(125, d.run("sensitive", "forget", shared), `session "plain"`)
	d.says(0, "", "sessions", "rm", "plain", "writer", "reader", "lab")
	d.says(0, "", "sensitive", "forget", shared)
	d.says(0, "", "volumes", "rm", "data")
	d.says(0, "", "exec", "lab", "-v", shared+":/shared", "--", "true")
	if is("lab") {
		t.Error("a new session is sensitive")
	}
}
