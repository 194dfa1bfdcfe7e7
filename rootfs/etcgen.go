package rootfs

import (
	"fmt"
	"slices"
	"strings"
)

// Fixed names and numbers in a box.
const (
	// HomeDir is the home directory of a box's user, even of root: a tmpfs that can be
	// written to and executed from.
	HomeDir = "/home/box"
	// DefaultHostname of a box.
	DefaultHostname = "box"
	// perBoxDir holds the generated files that differ between boxes. /etc, which boxes
	// share, has symlinks to them.
	perBoxDir = ".box"
	// ttyGID is the group of terminals, in the box.
	ttyGID = 5
	// boxIDs is how many user and group IDs a box has, starting at 0.
	boxIDs = 65536
)

// account is a line of passwd and a line of group.
type account struct {
	id                        int
	name, group, gecos, shell string
}

// accounts lists the accounts of every box.
var accounts = []account{
	{0, "root", "root", "root", "/bin/sh"},
	{1000, "user", "user", "user", "/bin/sh"},
	{65534, "nobody", "nogroup", "nobody", "/usr/sbin/nologin"},
	{65535, "boxd", "boxd", "boxd", "/usr/sbin/nologin"},
}

// usersFor returns the lines of passwd, including one for uid. If name is not empty, uid gets
// it, and another account of this name is left out.
func usersFor(uid int, name string) []account {
	var users []account
	for _, a := range accounts {
		if a.id != uid && (name == "" || a.name != name) {
			users = append(users, a)
		}
		if a.id == uid && name == "" {
			name = a.name
		}
	}
	if name == "" {
		name = fmt.Sprintf("user%d", uid)
	}
	return append(users, account{id: uid, name: name, gecos: name, shell: "/bin/sh"})
}

// groupsFor returns the lines of group, including one for gid.
func groupsFor(gid int) []account {
	groups := append(accounts[:len(accounts):len(accounts)], account{id: ttyGID, group: "tty"})
	if slices.ContainsFunc(groups, func(a account) bool { return a.id == gid }) {
		return groups
	}
	return append(groups, account{id: gid, group: fmt.Sprintf("user%d", gid)})
}

func passwd(users []account) []byte {
	var b strings.Builder
	for _, a := range users {
		fmt.Fprintf(&b, "%s:x:%d:%d:%s:%s:%s\n", a.name, a.id, a.id, a.gecos, HomeDir, a.shell)
	}
	return []byte(b.String())
}

func group(groups []account) []byte {
	var b strings.Builder
	for _, a := range groups {
		fmt.Fprintf(&b, "%s:x:%d:\n", a.group, a.id)
	}
	return []byte(b.String())
}

func hosts(hostname string) []byte {
	return fmt.Appendf(nil, "127.0.0.1\tlocalhost %s\n::1\tlocalhost ip6-localhost ip6-loopback %[1]s\n", hostname)
}

// genericEtc are the generated files that are the same in every box.
//
// nsswitch.conf names only modules that come with glibc: the host's may name modules that
// ask daemons (systemd, sss, ldap), which a box must not reach. resolv.conf names the
// loopback address, where a query is refused at once instead of timing out.
//
// Each login shell reads profile. That of a distribution starts programs (id), which takes
// more than half of the time of "sh -lc true", and replaces the command's PATH.
var genericEtc = map[string]string{
	"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n" +
		"protocols: files\nservices: files\nethers: files\nrpc: files\n",
	"profile": "# The environment of a command is complete before its shell starts.\n" +
		"if [ \"${BASH-}\" ] && [ \"${PS1-}\" ] && [ -r /etc/bash.bashrc ]; then . /etc/bash.bashrc; fi\n",
	"resolv.conf": "# This box has no name server.\nnameserver 127.0.0.1\noptions timeout:1 attempts:1\n",

	"ssh/boxd-proxy": sshProxy,
}

// perBoxEtc are the names of the generated files that differ between boxes.
var perBoxEtc = []string{"hostname", "hosts", "passwd", "group"}

// perBoxFile returns the content of one of perBoxEtc.
func perBoxFile(name string, o Options) []byte {
	switch name {
	case "hostname":
		return []byte(o.Hostname + "\n")
	case "hosts":
		return hosts(o.Hostname)
	case "passwd":
		return passwd(usersFor(o.UID, o.UserName))
	}
	return group(groupsFor(o.GID))
}
