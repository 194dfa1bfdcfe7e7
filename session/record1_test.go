package session

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/policy"
	"go.etcd.io/bbolt"
)

// fixture writes the database that f88faa3 made, of format 1, to path.
func fixture(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open("testdata/f88faa3.db.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return content
}

// TestFormat1 reads the database of f88faa3, which had sessions of several profiles with
// mounts and processes. The golden file is what f88faa3 itself said of its records.
func TestFormat1(t *testing.T) {
	path := filepath.Join(t.TempDir(), "boxd.db")
	old := fixture(t, path)
	st, got, err := openStore(path)
	if err != nil || got.damage != nil {
		t.Fatalf("%v, damage %v", err, got.damage)
	}
	var lines []string
	for _, rec := range got.sessions {
		r := rec.Resolved
		spec, err := json.Marshal(r.Spec())
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%s/%s %s generation %d life left %t: profile %s spec %s network %t workspace %s %q at %q size %d inodes %d make %t env %q idle %s life %s persistent %t timeout %s cap %s mounts %s overridden %q",
			rec.Tenant, rec.ID, rec.State, rec.Generation, rec.LifeLeft > 0, r.Profile, spec, r.Network, r.WorkspaceMode, r.Workspace, r.WorkspaceTarget, r.WorkspaceSize, r.WorkspaceInodes, r.MakeWorkspace,
			r.Env, r.IdleTTL, r.MaxLifetime, r.Persistent, r.Timeout, r.TimeoutCap, r.MountMode, r.Overridden))
		again, err := decodeSession(sessionKey(rec.key()), rec.put().value)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(rec) {
			t.Errorf("written as\n%+v, read as\n%+v, %v", rec, again, err)
		}
	}
	for _, p := range got.processes {
		result := "none"
		if p.Result != nil {
			result = fmt.Sprint(p.Result.Verdict, p.Result.ExitCode)
		}
		lines = append(lines, fmt.Sprintf("%s/%s %s %s %q history %d oldest %t memory %d result %s", p.Tenant, p.Session, p.ID, p.State, p.Args, p.History, p.DropOldest, p.Memory, result))
	}
	want, err := os.ReadFile("testdata/f88faa3.golden")
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(lines, "\n") + "\n"; text != string(want) {
		t.Errorf("reads as\n%s\nwant\n%s", text, want)
	}

	// The old database is kept, as it was, and only once.
	if err := st.close(); err != nil {
		t.Fatal(err)
	}
	kept := path + ".1"
	checkKept := func(when string) {
		t.Helper()
		content, err := os.ReadFile(kept)
		if err != nil || !sameRecords(t, content, old) {
			t.Errorf("%s: %v, %d bytes kept of %d", when, err, len(content), len(old))
		}
	}
	checkKept("first start")
	if st, got, err = openStore(path); err != nil || got.damage != nil || len(got.sessions) != 10 {
		t.Fatalf("second start: %v, %v, %d sessions", err, got.damage, len(got.sessions))
	}
	if err := st.close(); err != nil {
		t.Fatal(err)
	}
	checkKept("second start")
	if list, err := filepath.Glob(path + "*"); err != nil || len(list) != 2 {
		t.Errorf("files %q, %v", list, err)
	}
}

// sameRecords compares the content of two databases: the free pages of a copy differ.
func sameRecords(t *testing.T, a, b []byte) bool {
	dump := func(content []byte) []byte {
		path := filepath.Join(t.TempDir(), "db")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		var out bytes.Buffer
		err = db.View(func(tx *bbolt.Tx) error {
			return tx.ForEach(func(name []byte, bucket *bbolt.Bucket) error {
				return bucket.ForEach(func(k, v []byte) error {
					fmt.Fprintf(&out, "%s %q %q\n", name, k, v)
					return nil
				})
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	return bytes.Equal(dump(a), dump(b))
}

// The old database cannot be kept: nothing is changed.
func TestFormat1WithoutCopy(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "boxd.db")
	old := fixture(t, path)
	if err := os.Mkdir(path+".1.new", 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openStore(path); err == nil || !strings.Contains(err.Error(), "keeping a copy") {
		t.Errorf("%v, want it refused", err)
	}
	if content, err := os.ReadFile(path); err != nil || !bytes.Equal(content, old) {
		t.Errorf("it was changed: %v", err)
	}
}

// Sessions of f88faa3 are there after a start: their boxes are gone, their settings hold.
func TestSessionsOfFormat1(t *testing.T) {
	b := newBench(t)
	fixture(t, filepath.Join(b.dir, "boxd.db"))
	b.policy.TenantDefaults, b.policy.Limits = policy.Quotas{Memory: -1, CPUs: -1}, policy.Quotas{Memory: -1, CPUs: -1}
	b.start()
	v := b.get(Key{"t", "free"})
	if r := v.Resolved; r.Profile != "free" || !r.Persistent || r.Memory != -1 || r.IdleTTL.String() != "5m0s" || r.WorkspaceMode != "rw" {
		t.Errorf("%+v", v)
	}
}
