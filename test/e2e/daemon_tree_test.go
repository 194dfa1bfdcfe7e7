package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestCopyTree: a tree of many files goes up and down in one request each way, as the session's user.
func TestCopyTree(t *testing.T) {
	d := startDaemon(t)
	tree, back := filepath.Join(t.TempDir(), "tree"), filepath.Join(t.TempDir(), "back")
	const files = 2000
	for i := range files {
		dir := filepath.Join(tree, fmt.Sprint(i%20))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d-\xff", i)), []byte(strings.Repeat("x", i)), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	d.says(0, "", "exec", "s", "--user", "1000:1000", "--", "true")
	began := time.Now()
	d.says(0, "", "cp", tree, "s:")
	up := time.Since(began)
	began = time.Now()
	d.says(0, "", "cp", "s:tree", back)
	t.Logf("%d files: up %v, down %v", files, up, time.Since(began))
	for i := range files {
		name := filepath.Join(fmt.Sprint(i%20), fmt.Sprintf("%d-\xff", i))
		if text, err := os.ReadFile(filepath.Join(back, name)); err != nil || len(text) != i {
			t.Fatalf("%q: %d bytes, %v", name, len(text), err)
		}
	}
	d.says(0, "2000\n", "exec", "s", "--", "sh", "-c", "find tree -type f -perm 640 -uid $(id -u) | wc -l")

	// Between sessions the tree does not pass through the client.
	d.says(0, "", "exec", "other", "--", "true")
	d.says(0, "", "cp", "s:tree", "other:copy")
	d.says(0, "2000\n", "exec", "other", "--", "sh", "-c", "find copy -type f -perm 640 | wc -l")
	d.says(0, "", "mv", "other:copy", "moved")
	d.says(0, "moved\n", "exec", "other", "--", "ls")

	// What a command makes comes back with its result.
	made := t.TempDir()
	d.says(3, "", "exec", "other", "--outputs", "*.txt", "--outputs-to", made, "--", "sh", "-c", "echo new >new.txt; exit 3")
	if text, err := os.ReadFile(filepath.Join(made, "new.txt")); err != nil || string(text) != "new\n" {
		t.Errorf("%q, %v", text, err)
	}

	// A file that the user may not read is named, and nothing arrives.
	d.says(0, "", "exec", "s", "--", "chmod", "0", "tree/7")
	got := d.run("cp", "--json", "s:tree", filepath.Join(t.TempDir(), "none"))
	if uid := d.run("exec", "s", "--", "id", "-u").stdout; uid != "0\n" {
		d.wantRefused(125, got, `"7": permission denied`)
	}
	// So is what does not fit.
	d.says(0, "", "exec", "s", "--", "chmod", "755", "tree/7")
	big := filepath.Join(t.TempDir(), "big")
	if err := os.MkdirAll(big, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(big, "file"), make([]byte, 80<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	d.wantRefused(125, d.run("cp", big, "s:/tmp"), `"big/file": no space left on device`)
	d.says(0, "", "exec", "s", "--", "sh", "-c", "ls -A /tmp/big")
}

// TestWatchInBox: changes are seen from inside the box, and the watch ends with its client.
func TestWatchInBox(t *testing.T) {
	d := startDaemon(t)
	d.says(0, "", "exec", "s", "--", "mkdir", "dir")
	p := d.openPTY(33, 111, "watch", "s:dir", "-r", "--json")
	p.await(`{"type":"ready"}`)
	d.says(0, "", "exec", "s", "--", "sh", "-c", "mkdir -p dir/a/b; echo x >dir/a/b/f")
	p.await(`"path":"a/b/f"`)
	d.says(0, "", "exec", "s", "--", "rm", "-r", "dir")
	p.await(`{"type":"gone"}`)
	if status := p.wait(); status != 0 {
		t.Errorf("status %d", status)
	}
}
