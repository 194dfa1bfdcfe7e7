package testutil

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// RequireRoot ends the test unless it runs as root. With CI set to anything it
// fails, because a privileged test that is skipped there would vanish unseen.
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

// RequireFeature ends the test if err, the result of trying the kernel feature
// name, is not nil. It skips, which is a claim about the kernel; with
// BOXD_TEST_REQUIRE=1 the claim is checked against the table in features.go and
// a feature that a host of this kind has fails the test instead.
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

// RequireProgram returns the path of a program of the host that the test runs,
// and ends the test if it is not installed. With BOXD_TEST_REQUIRE=1 that is a
// failure for the programs that "make setup" installs.
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

// RequireFile ends the test if there is no file at path, which "make setup" installs. With
// BOXD_TEST_REQUIRE=1 that is a failure.
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

// Long marks a test that takes more than a few seconds, or minutes in an emulated
// machine, for what no kernel makes a difference to. It is left out with -short, which is
// how "make test" uses the virtual machine; no other target does.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long: left out with -short")
	}
}

// Full says whether a test runs in its long form, of minutes: only "make full" asks
// for that.
func Full() bool { return os.Getenv("BOXD_TEST_FULL") == "1" }

// required says that skips are checked.
func required() bool { return os.Getenv("BOXD_TEST_REQUIRE") == "1" }

// programs are those that every test machine has: see .ci/setup.
var programs = map[string]bool{
	"sh": true, "python3": true, "gcc": true, "cc": true, "git": true,
	"mount": true, "ip": true, "unshare": true, "setpriv": true,
	"file": true, "man": true, "gpg": true, "gpg-agent": true,
	"ssh": true, "scp": true, "ssh-agent": true, "ssh-add": true, "ssh-keygen": true, "dropbear": true, "dropbearkey": true,
	"dig": true, "getent": true, "musl-gcc": true, "node": true, "java": true, "javac": true,
	"psql": true, "initdb": true, "postgres": true, "pg_ctl": true,
	"mariadb": true, "mariadbd": true, "mariadb-install-db": true,
	"redis-check-rdb": true, "redis-cli": true, "nginx": true, "chromium": isDebian(),
}

// isDebian says whether this is Debian itself. Chromium is a snap in Ubuntu, which a
// box cannot run.
func isDebian() bool {
	release, _ := os.ReadFile("/etc/os-release") // without it: some other distribution
	return slices.Contains(strings.Split(string(release), "\n"), "ID=debian")
}
