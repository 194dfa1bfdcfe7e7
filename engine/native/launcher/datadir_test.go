package launcher

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

func TestCheckDataDir(t *testing.T) {
	testutil.RequireRoot(t)
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	for _, err := range []error{
		os.MkdirAll(at("good/data"), 0o700), os.Chmod(at("good"), 0o755),
		os.MkdirAll(at("sticky/data"), 0o700), os.Chmod(at("sticky"), 0o777|os.ModeSticky),
		os.MkdirAll(at("open/data"), 0o700), os.Chmod(at("open"), 0o777),
		os.MkdirAll(at("group/data"), 0o700), os.Chmod(at("group"), 0o775),
		os.MkdirAll(at("theirs/data"), 0o700), os.Chown(at("theirs"), 1000, 1000),
		os.MkdirAll(at("good/readable"), 0o755), os.MkdirAll(at("good/grouped"), 0o700), os.Chmod(at("good/grouped"), 0o770),
		os.MkdirAll(at("good/owned"), 0o700), os.Chown(at("good/owned"), 1000, 0),
		os.Symlink("good", at("link")), os.WriteFile(at("good/file"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"good/data":     "",
		"good/new":      "",
		"sticky/data":   "",
		"open/data":     "another directory could be put in its place",
		"group/data":    "another directory could be put in its place",
		"theirs/data":   "another directory could be put in its place",
		"good/readable": "closed to all others",
		"good/grouped":  "closed to all others",
		"good/owned":    "must belong to root",
		"link/data":     "passes a symlink",
		"good/file":     "must be a directory",
		"missing/data":  "no such file",
	} {
		err := checkDataDir(at(name))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	info, err := os.Stat(at("good/new"))
	if err != nil || info.Mode() != os.ModeDir|0o700 {
		t.Errorf("made: %v, %v", info, err)
	}
}

func TestParseServiceDataDir(t *testing.T) {
	for _, c := range []struct{ dir, want string }{
		{"/var/lib/boxd-volumes", ""},
		{"relative", "absolute and cleaned"},
		{"/a/../b", "absolute and cleaned"},
		{"/a/", "absolute and cleaned"},
	} {
		o, err := ParseService([]string{"--state-dir", "/run/boxd", "--client", "0:0", "--data-dir", c.dir})
		if c.want == "" && (err != nil || o.DataDir != c.dir) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q: %+v, %v", c.dir, o, err)
		}
		if again, err := ParseService(o.args()[1:]); c.want == "" && (err != nil || !reflect.DeepEqual(again, o)) {
			t.Errorf("%+v from %q, %v", again, o.args(), err)
		}
	}
}
