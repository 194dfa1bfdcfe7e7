package testutil

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// RequireRoot skips the test unless it runs as root. With CI set to anything it fails the test instead,
// so that no privileged test vanishes unseen.
func RequireRoot(t testing.TB) {
	t.Helper()
	if unprivileged {
		t.Fatal("a test that needs root, in a package whose TestMain calls testutil.MainUnprivileged: call testutil.Main")
	}
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("needs root, and CI is set: run the privileged tests as root")
	}
	t.Skip("needs root: run make test-root")
}

// RequireFeature skips the test if err, the result of trying the kernel feature name, is not nil. A
// skip is a claim about the kernel: with BOXD_TEST_REQUIRE=1 it is checked against the table in
// features.go, and if a host of this kind should have the feature, the test fails.
func RequireFeature(t testing.TB, name string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if required() {
		if why, absent := expectedAbsent(name, thisHost()); !absent {
			t.Fatalf("kernel feature %q: %v: it should be here (%s)", name, err, why)
		}
	}
	t.Skipf("kernel feature %q: %v", name, err)
}

// RequireProgram returns the path of a program that the test runs, and skips the test if it is not
// installed. With BOXD_TEST_REQUIRE=1 the test fails if "make setup" installs the program.
func RequireProgram(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if required() && programs[name] {
		t.Fatalf("program %q: %v: run make setup", name, err)
	}
	t.Skipf("program %q: %v", name, err)
	return ""
}

// RequireFile skips the test if the file at path is missing, which "make setup" installs. With
// BOXD_TEST_REQUIRE=1 the test fails.
func RequireFile(t testing.TB, path string) {
	t.Helper()
	_, err := os.Stat(path)
	if err == nil {
		return
	}
	if required() {
		t.Fatalf("%v: run make setup", err)
	}
	t.Skip(err)
}

// Long marks a test that takes more than a few seconds, or minutes in an emulated machine, and to which
// the kernel's version makes little difference. It is skipped with -short, which only "make test" uses, in
// the virtual machine; "make full" runs it there.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long: left out with -short")
	}
}

// Full reports whether a test runs in its long form, which takes minutes. Only "make full" asks for
// that.
func Full() bool { return os.Getenv("BOXD_TEST_FULL") == "1" }

// required reports whether skips are checked.
func required() bool { return os.Getenv("BOXD_TEST_REQUIRE") == "1" }

// programs are installed on every test machine: see .ci/setup.
var programs = map[string]bool{
	"umoci": true, "runc": true, "containerd": true, "ctr": true, "skopeo": true, "busybox": true, "docker-registry": true, "htpasswd": true, "mkfs.ext4": true,
	"sh": true, "python3": true, "gcc": true, "cc": true, "git": true,
	"mount": true, "ip": true, "unshare": true, "setpriv": true,
	"file": true, "man": true, "gpg": true, "gpg-agent": true,
	"ssh": true, "scp": true, "ssh-agent": true, "ssh-add": true, "ssh-keygen": true, "dropbear": true, "dropbearkey": true,
	"dig": true, "getent": true, "musl-gcc": true, "node": true, "java": true, "javac": true,
	"psql": true, "initdb": true, "postgres": true, "pg_ctl": true,
	"mariadb": true, "mariadbd": true, "mariadb-install-db": true,
	"openssl": true, "curl": true, "wget": true, "npm": true, "cargo": true,
	"redis-check-rdb": true, "redis-cli": true, "nginx": true, "chromium": isDebian(),
	"bwrap": true, "fuse-overlayfs": true,
}

// isDebian reports whether this is Debian itself. Ubuntu has Chromium as a snap, which a box cannot
// run.
func isDebian() bool {
	release, _ := os.ReadFile("/etc/os-release") // without it: some other distribution
	return slices.Contains(strings.Split(string(release), "\n"), "ID=debian")
}
