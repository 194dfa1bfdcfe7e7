package daemon

import (
	"os/user"
	"strings"
	"testing"
)

func TestLookupAccount(t *testing.T) {
	if _, err := user.Lookup(DefaultUser); err != nil {
		a, err := lookupAccount("")
		if want := (account{"nobody", nobody, nobody, true}); err != nil || a != want {
			t.Errorf("default: %+v, %v, want %+v", a, err, want)
		}
	}
	a, err := lookupAccount("nobody")
	if err != nil || a.uid == 0 || a.fallback {
		t.Errorf("nobody: %+v, %v", a, err)
	}
	for name, part := range map[string]string{
		"root":           "neither root nor in group root",
		"no-such-user-x": `user "no-such-user-x": must be a user of this host`,
		"../etc":         "must be a user",
	} {
		if _, err := lookupAccount(name); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want %q", name, err, part)
		}
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
