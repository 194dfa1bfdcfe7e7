package daemon

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// The key of links is made once, for the daemon only. With a damaged one, the daemon does not start.
func TestLinkKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), linkKeyName)
	key, err := linkKey(path)
	if err != nil || len(key) != 32 || bytes.Equal(key, make([]byte, 32)) {
		t.Fatalf("%x, %v", key, err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if again, err := linkKey(path); err != nil || !bytes.Equal(again, key) {
		t.Errorf("a second key: %v", err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[3] ^= 1
	for name, content := range map[string][]byte{"empty": {}, "short": whole[:35], "long": append(bytes.Clone(whole), 0), "changed": flipped, "zeros": make([]byte, 35)} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := linkKey(path); err == nil {
			t.Errorf("%s: is taken", name)
		}
		if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, content) {
			t.Errorf("%s: was replaced", name)
		}
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []fs.FileMode{0o640, 0o604, 0o622} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := linkKey(path); err == nil {
			t.Errorf("a key with mode %v is taken", mode)
		}
	}
	link := path + "2"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := linkKey(link); err == nil {
		t.Error("a symlink is taken")
	}
}
