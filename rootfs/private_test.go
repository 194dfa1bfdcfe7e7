package rootfs

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// private lists files in a host's /usr that not everybody may read, with their
// content. The IDs are host IDs.
const private = `cd "$1"/usr/share
secret() { case $1 in */*) mkdir -p "${1%/*}";; esac; echo secret >"$1"; chown "$3" "$1"; chmod "$2" "$1"; }
secret file0600 0600 0:0
secret file0640 0640 0:42
secret file0200 0200 0:0
secret setuid4700 4700 0:0
secret setgid2750 2750 0:42
secret other0600 0600 996:996
secret far0600 0600 70000:70000
secret dir0700/public 0644 0:0
secret dir0700/sub/public 0644 0:0; chmod 0700 dir0700
secret dir0750/public 0644 0:42; chmod 0750 dir0750; chgrp 42 dir0750
secret dir0711/listed 0644 0:0; chmod 0711 dir0711
secret polkit/public 0644 996:0; chmod 0700 polkit; chown 996:0 polkit
secret shown/setuid4755 4755 0:0
secret shown/setgid2755 2755 0:42
secret shown/plain 0644 996:996
mkdir -p dead0700/empty; chmod 0700 dead0700`

// privateHost is a template with private files and the system's programs.
func privateHost(t *testing.T, dir string) *Host {
	t.Helper()
	root := copySystem(t)
	if out, err := exec.Command("sh", "-ec", private, "sh", root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h, err := buildHost(filepath.Join(dir, "host"), "", root, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// TestPrivateFilesStayPrivate tries to read, from a box with a writable root, files that
// only some users of the host may read, as each user that may be their owner.
func TestPrivateFilesStayPrivate(t *testing.T) {
	testutil.Long(t)
	dir := stateDir(t)
	h := privateHost(t, dir)
	r := testBox(t, h, dir, "a", writable(t, testBase))
	for _, user := range []string{"0 0", "996 996", "1000 42", "65534 65534"} {
		for _, script := range []string{
			"cat file0600", "cat file0640", "cat file0200", "cat setuid4700", "cat setgid2750", "cat other0600", "cat far0600",
			"ls dir0700", "cat dir0700/public", "cat dir0700/sub/public", "ls dir0700/sub", "stat dir0700/public",
			"ls dir0750", "cat dir0750/public", "ls dir0711", "ls polkit", "cat polkit/public", "ls dead0700",
			// Make it public first, use another name, or cause a copy up.
			"chmod 0644 file0600; cat file0600", "ln file0600 /usr/link; cat /usr/link", "mv file0600 /usr/moved; cat /usr/moved",
			"echo x >>file0640; cat file0640", "cp setgid2750 /tmp/copy", "touch other0600; cat other0600",
			"chmod 0755 dir0700; ls dir0700", "cat dir0700/public", "mv dir0750 /usr/d; ls /usr/d; cat /usr/d/public",
			"exec 3>>file0600; cat /proc/self/fd/3", "mv polkit /usr/p; chmod 0777 /usr/p; cat /usr/p/public",
		} {
			cmd := command(r, testBase, user, "sh", "-c", "cd /usr/share; "+script)
			if out, err := output(t, cmd, testBase); err == nil {
				t.Errorf("user %s: %s: works: %q", user, script, out)
			}
		}
	}
	got := sh(t, r, testBase, "cd /usr/share/shown; cat *; stat -c '%n %a %u:%g' *; cat ../dir0711/listed")
	if want := "secret\nsecret\nsecret\nplain 644 996:996\nsetgid2755 2755 0:42\nsetuid4755 4755 0:0\nsecret"; got != want {
		t.Errorf("what is public shows as %q", got)
	}
}

// TestPrivateFilesCanGo: the box may do anything to private files that does not read them.
func TestPrivateFilesCanGo(t *testing.T) {
	testutil.Long(t)
	dir := stateDir(t)
	h := privateHost(t, dir)
	r := testBox(t, h, dir, "a", writable(t, testBase))
	sh(t, r, testBase, "cd /usr/share && rm -f file0600 && echo mine >file0600 && chmod 600 file0600")
	if got := sh(t, r, testBase, "cat /usr/share/file0600"); got != "mine" {
		t.Errorf("a private file of the box's own has %q", got)
	}
	sh(t, r, testBase, "mkdir /usr/share/own && chmod 700 /usr/share/own && touch /usr/share/own/x && ls /usr/share/own")
}
