package daemon

import (
	"os"
	"os/user"
	"slices"
	"strings"
	"testing"
)

func TestLookupAccount(t *testing.T) {
	dir := t.TempDir() // does not belong to root, so no ID owns it
	if _, err := user.Lookup(defaultUser); err != nil {
		a, err := lookupAccount("", dir)
		if err != nil || !a.dedicated || a.uid < firstDedicated || a.uid > lastDedicated || a.gid != a.uid {
			t.Errorf("default: %+v, %v, want an id of its own", a, err)
		}
		if again, err := lookupAccount("", dir); err != nil || again != a {
			t.Errorf("asked again: %+v, %v, want %+v", again, err, a)
		}
		if other, err := lookupAccount("", dir+"/other"); err != nil || other.uid == a.uid {
			t.Errorf("another directory: %+v, %v, want another id than %d", other, err, a.uid)
		}
	}
	for name, part := range map[string]string{
		"root":           "neither root nor in group root",
		"nobody":         `user "nobody": must not be nobody`,
		"no-such-user-x": `user "no-such-user-x": must be a user of this host`,
		"../etc":         "must be a user",
	} {
		if _, err := lookupAccount(name, dir); err == nil || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", name, err, part)
		}
	}
}

func TestParseIDRanges(t *testing.T) {
	got, err := parseIDRanges("# comment\nann:100000:65536\n\n1000:2147418112:10\n")
	want := []idRange{{"ann", 100000, 65536}, {"1000", firstDedicated, 10}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for _, text := range []string{"ann:100000", "ann:x:1", "ann:1:-1", "ann:1:99999999999"} {
		if got, err := parseIDRanges(text); err == nil {
			t.Errorf("%q: %v, want an error: ids that others have would be taken for free", text, got)
		}
	}
}

// A state directory of another user's daemon is refused in one line that says what to do.
func TestCheckOwner(t *testing.T) {
	dir := t.TempDir()
	if err := checkOwner(dir, account{uid: 7, gid: 7}); err != nil {
		t.Errorf("a new directory: %v", err)
	}
	if err := os.WriteFile(dir+"/daemon.lock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(dir+"/daemon.lock", 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	err := checkOwner(dir, account{uid: 7, gid: 8})
	if err == nil || !strings.Contains(err.Error(), " 7:8 "+dir) || !strings.Contains(err.Error(), "chown -hR --from=") || strings.Contains(err.Error(), "\n") {
		t.Errorf("another user's directory: %v, want one line with the chown", err)
	}
}

func TestLookupGroup(t *testing.T) {
	for name, want := range map[string]int{"root": 0, "65534": 65534, "0": 0} {
		if gid, err := lookupGroup(name); err != nil || gid != want {
			t.Errorf("%s: %d, %v, want %d", name, gid, err, want)
		}
	}
	for _, name := range []string{"no-such-group-x", "-1", "", "99999999999"} {
		if gid, err := lookupGroup(name); err == nil {
			t.Errorf("%q: %d, want an error", name, gid)
		}
	}
}
