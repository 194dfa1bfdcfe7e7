package rootfs

import (
	"os/exec"
	"strings"
	"testing"
)

// names returns the names and IDs in the lines of passwd or group, as "tty:5 …".
func names(file []byte) string {
	var list []string
	for line := range strings.Lines(string(file)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		list = append(list, f[0]+":"+f[2])
	}
	return strings.Join(list, " ")
}

func TestAccounts(t *testing.T) {
	for _, c := range []struct {
		uid, gid      int
		name          string
		passwd, group string
	}{
		{0, 0, "", "user:1000 nobody:65534 boxd:65535 root:0", "root:0 user:1000 nogroup:65534 boxd:65535 tty:5"},
		{1000, 1000, "ann", "root:0 nobody:65534 boxd:65535 ann:1000", "root:0 user:1000 nogroup:65534 boxd:65535 tty:5"},
		{7, 8, "", "root:0 user:1000 nobody:65534 boxd:65535 user7:7", "root:0 user:1000 nogroup:65534 boxd:65535 tty:5 user8:8"},
		{7, 5, "user", "root:0 nobody:65534 boxd:65535 user:7", "root:0 user:1000 nogroup:65534 boxd:65535 tty:5"},
	} {
		o := Options{UID: c.uid, GID: c.gid, UserName: c.name}
		if got := names(perBoxFile("passwd", o)); got != c.passwd {
			t.Errorf("%+v: passwd %q, want %q", c, got, c.passwd)
		}
		if got := names(perBoxFile("group", o)); got != c.group {
			t.Errorf("%+v: group %q, want %q", c, got, c.group)
		}
	}
}

// TestProfile: a login shell starts no program and keeps the PATH of its command.
func TestProfile(t *testing.T) {
	out, err := exec.Command("/bin/sh", "-c", `PATH=/of/the/command; set -eu --; `+genericEtc["profile"]+`echo "$PATH"`).CombinedOutput()
	if err != nil || string(out) != "/of/the/command\n" {
		t.Errorf("%q, %v", out, err)
	}
	if strings.Contains(genericEtc["profile"], "$(") || strings.Contains(genericEtc["profile"], "`") {
		t.Error("it starts a program")
	}
}
