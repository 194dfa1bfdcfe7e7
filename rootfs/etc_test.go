package rootfs

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	pemKey  = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAvGZ7\n-----END RSA PRIVATE KEY-----\n"
	pemCert = "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBa\n-----END CERTIFICATE-----\n"
	opaque  = "ghp_16C7e42F292c6912E7710c838347Ae178B4a\n"
)

// wholeEtc is an /etc with unchanged files of packages (content "package"), changed ones,
// generated ones and planted ones. All are world-readable unless the content is "secret".
func wholeEtc() map[string]string {
	files := map[string]string{
		"chromium.d/default-flags": "package", "maven/m2.conf": "package", "manpath.config": "package", "matplotlibrc": "package",
		"app/changed.conf": "dpi: 100\n", "app/changed-token.conf": "x", "app/changed.ini": "password = x\n", "app/changed.toml": "proxy = http://a:b@proxy/\n",
		"app/packaged.key": "package", "app/unreadable.conf": "secret",
		"ld.so.cache": "glibc-ld.so.cache1.1\x00\x01", "timezone": "Etc/UTC\n", "shells": "/bin/sh\n", "services": "secret", "inputrc": pemKey, "locale.conf": opaque,
		"ssl/certs/ca-certificates.crt": pemCert + pemCert, "ssl/certs/both.pem": pemCert + pemKey, "ssl/certs/token.pem": opaque,
		"ssl/certs/java/cacerts": "\xfe\xed\xfe\xed\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x01", "ssl/private/plain": "open", "xml/catalog": "<catalog/>\n",
		"foo.key": pemKey, "myapp/token.conf": opaque, "myapp/plain.conf": "open", ".htpasswd": "ann:$apr1$abcdefgh$abcdefghijklmnopqrstuv\n",
		"chromium.d/planted": "open", "maven/planted.key": pemKey, "python3/planted": opaque, "npmrc": "//registry/:_authToken=x\n",
		"boxd/launcher.yaml": "mount_roots: []\n", "resolv.conf": "nameserver 10.1.2.3\n", "machine-id": "0123456789abcdef0123456789abcdef\n",
	}
	for i := range 40 {
		files[fmt.Sprint("big/", i)] = "package"
	}
	return files
}

// shownOf lists what a box sees of wholeEtc, apart from directories and generated files.
var shownOf = []string{
	"chromium.d/default-flags", "maven/m2.conf", "manpath.config", "matplotlibrc", "app/changed.conf", "big/39",
	"ld.so.cache", "timezone", "shells", "ssl/certs/ca-certificates.crt", "xml/catalog",
}

var hiddenOf = []string{
	"app/changed-token.conf", "app/changed.ini", "app/changed.toml", "app/packaged.key", "app/unreadable.conf", "services", "inputrc", "locale.conf",
	"ssl/certs/both.pem", "ssl/certs/token.pem", "ssl/certs/java", "ssl/private", "foo.key", "myapp", ".htpasswd",
	"chromium.d/planted", "maven/planted.key", "python3", "npmrc", "boxd", "machine-id",
}

// database writes a package manager's database of its files in wholeEtc.
func database(kind string, files map[string]string) map[string]string {
	text := map[string]string{"dpkg": "Package: x\nConffiles:\n", "apk": "P:x\n", "pacman": "%FILES%\netc/foo.key\n\n%BACKUP%\n"}[kind]
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if files[name] != "package" && !strings.HasPrefix(name, "app/") {
			continue
		}
		switch kind {
		case "dpkg":
			text += fmt.Sprintf(" /etc/%s %x\n", name, md5.Sum([]byte("package")))
		case "apk":
			sum := sha1.Sum([]byte("package"))
			text += fmt.Sprintf("F:%s\nM:0:0:0755\nR:%s\nZ:Q1%s\n", filepath.Join("etc", filepath.Dir(name)), filepath.Base(name), base64.StdEncoding.EncodeToString(sum[:]))
		case "pacman":
			text += fmt.Sprintf("etc/%s\t%x\n", name, md5.Sum([]byte("package")))
		}
	}
	path := map[string]string{"none": "var/lib/none", "dpkg": "var/lib/dpkg/status", "apk": "lib/apk/db/installed", "pacman": "var/lib/pacman/local/x-1/files"}[kind]
	return map[string]string{path: text}
}

func etcHost(t *testing.T, kind string) string {
	t.Helper()
	all := map[string]string{}
	etc := wholeEtc()
	for name, content := range etc {
		all["etc/"+name] = content
	}
	maps.Copy(all, database(kind, etc))
	root := fakeHost(t, all)
	for name, target := range map[string]string{
		"etc/alternatives/awk": "/usr/bin/mawk", "etc/mtab": "../proc/self/mounts", "etc/localtime": "/usr/share/zoneinfo/UTC",
		"etc/ssl/certs/abc.0": "ca-certificates.crt", "etc/ssl/certs/def.0": "both.pem", "etc/ssl/certs/chain": "abc.0",
		"etc/outside": "/var/lib/app/token", "etc/dangling": "/usr/bin/none", "etc/planted": "foo.key", "etc/up": "../../../usr/bin/mawk",
		"usr/share/zoneinfo/UTC": "x", "usr/bin/mawk": "x",
	} {
		os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755)
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestEtcRule: what boxes see of an /etc follows from the rule, whichever package manager
// the host has.
func TestEtcRule(t *testing.T) {
	dir := stateDir(t)
	links := []string{"alternatives/awk", "mtab", "localtime", "ssl/certs/abc.0", "ssl/certs/chain", "up"}
	noLinks := []string{"ssl/certs/def.0", "outside", "dangling", "planted"}
	for i, c := range []struct {
		kind          string
		shown, hidden []string
	}{
		{"dpkg", shownOf, hiddenOf},
		{"apk", shownOf, hiddenOf},
		{"pacman", shownOf, hiddenOf},
		// Without a database, big and app belong to no known package, and the random string in python3 is hidden too.
		{"none", []string{"chromium.d/default-flags", "maven/m2.conf", "timezone", "ssl/certs/ca-certificates.crt", "xml/catalog"},
			[]string{"big", "app", "services", "inputrc", "ssl/certs/both.pem", "foo.key", "myapp", ".htpasswd", "maven/planted.key", "python3", "npmrc", "boxd"}},
	} {
		h, err := buildHost(filepath.Join(dir, fmt.Sprint("host", i)), "", etcHost(t, c.kind), false)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		r := testBox(t, h, dir, c.kind, options(testBase))
		for _, name := range slices.Concat(c.shown, links) {
			if _, err := os.Lstat(filepath.Join(r.Path(), "etc", name)); err != nil {
				t.Errorf("%s: %v", c.kind, err)
			}
		}
		for _, name := range slices.Concat(c.hidden, noLinks) {
			if _, err := os.Lstat(filepath.Join(r.Path(), "etc", name)); err == nil {
				t.Errorf("%s: a box sees /etc/%s", c.kind, name)
			}
		}
		text, err := os.ReadFile(filepath.Join(r.Path(), "etc/resolv.conf"))
		if string(text) != genericEtc["resolv.conf"] {
			t.Errorf("%s: resolv.conf is %q, %v", c.kind, text, err)
		}
	}
}

// TestEtcOfThisHost: a box sees a file of this host's own packages, but not what root plants.
func TestEtcOfThisHost(t *testing.T) {
	dir := stateDir(t)
	packages := readPackages("/")
	if len(packages) == 0 {
		t.Skip("this host has no package database that is read")
	}
	r := testBox(t, testHost(t, dir), dir, "a", options(testBase))
	seen := 0
	err := filepath.WalkDir(r.Path()+"/etc", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		name := strings.TrimPrefix(path, r.Path()+"/etc/")
		_, ours := genericEtc[name]
		switch _, packaged := packages[name]; {
		case packaged:
			seen++
		case !ours && !isGenerated(name):
			t.Errorf("/etc/%s belongs to no package", name)
		}
		return nil
	})
	if err != nil || seen < len(packages)/2 {
		t.Errorf("%d of %d files of packages: %v", seen, len(packages), err)
	}
}

// TestEtcIsKept: the copy is made once, and again when something has changed; a box with the
// earlier copy keeps it.
func TestEtcIsKept(t *testing.T) {
	dir := stateDir(t)
	root := etcHost(t, "dpkg")
	cache := filepath.Join(t.TempDir(), "cache", "etc")
	copies := func() int {
		_, rule := copyNames()
		list, _ := filepath.Glob(filepath.Join(cache, rule+"*"))
		return len(list)
	}
	n := 0
	build := func() *Host {
		n++
		h, err := buildHost(filepath.Join(dir, fmt.Sprint("host", n)), cache, root, false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { h.Close() })
		return h
	}
	has := func(r *Root, name string) bool {
		_, err := os.Lstat(filepath.Join(r.Path(), "etc", name))
		return err == nil
	}
	first := testBox(t, build(), dir, "a", options(testBase))
	build()
	if copies() != 1 || !has(first, "manpath.config") {
		t.Errorf("%d copies of one state; the file is there: %v", copies(), has(first, "manpath.config"))
	}
	for i, change := range []func() error{
		func() error { return os.WriteFile(root+"/etc/manpath.config", []byte("password = x\n"), 0o644) }, // in place
		func() error { return os.Chmod(root+"/etc/matplotlibrc", 0o600) },
		func() error { return os.WriteFile(root+"/etc/ssl/certs/planted.pem", []byte(pemKey), 0o644) },
		func() error { return os.Symlink("/usr/bin/mawk", root+"/etc/alternatives/nawk") },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		build()
		if copies() != i+2 {
			t.Errorf("change %d: %d copies", i, copies())
		}
	}
	last := testBox(t, build(), dir, "b", options(otherBase))
	if !has(first, "matplotlibrc") || has(last, "matplotlibrc") || has(last, "manpath.config") || has(last, "ssl/certs/planted.pem") || !has(last, "alternatives/nawk") {
		t.Error("a box does not have the /etc of its time")
	}
	if err := os.Mkdir(filepath.Join(cache, "0-elsewhen-x"), 0o700); err != nil { // of another boot
		t.Fatal(err)
	}
	boot, _ := copyNames()
	if err := os.Mkdir(filepath.Join(cache, boot+"99-x"), 0o700); err != nil { // of another version
		t.Fatal(err)
	}
	os.Remove(root + "/etc/timezone")
	build()
	if _, err := os.Lstat(filepath.Join(cache, "0-elsewhen-x")); err == nil {
		t.Error("a copy of another boot is still there")
	}
	if _, err := os.Lstat(filepath.Join(cache, boot+"99-x")); err != nil {
		t.Errorf("a copy of another version, which boxes may be using: %v", err)
	}
	if err := os.Chmod(cache, 0o777); err != nil {
		t.Fatal(err)
	}
	before := copies()
	os.Remove(root + "/etc/shells")
	if r := testBox(t, build(), dir, "c", options(testBase)); copies() != before || !has(r, "maven/m2.conf") || has(r, "shells") {
		t.Error("a directory that everybody can write is used, or /etc is missing without it")
	}
}

func TestReadRPM(t *testing.T) {
	want := fmt.Sprintf("%x", sha256.Sum256([]byte("package")))
	p := packagedEtc{}
	p.add("/etc/a", want)
	p.add("/etc/dir", "")
	p.add("/usr/b", want)
	if packaged, same := p.has("a", []byte("package")); len(p) != 1 || !packaged || !same {
		t.Errorf("%v", p)
	}
	if packaged, same := p.has("a", []byte("changed")); !packaged || same {
		t.Error("a changed file counts as unchanged")
	}
}

// TestSecrets: what certainly is a secret, and what may be one.
func TestSecrets(t *testing.T) {
	for _, c := range []struct {
		name, content string
		holds, may    bool
	}{
		{"a.conf", "dpi: 100\n", false, false},
		{"a.conf", "MAGIC=-----BEGIN RSA PRIVATE KEY-----\n", false, true},
		{"a.conf", pemKey, true, true},
		{"a.conf", `key = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIIGHdkxQ0l3q"`, true, true},
		{"a.conf", "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n", true, true},
		{"a.conf", "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 1\n", true, true},
		{"a.conf", "PuTTY-User-Key-File-3: ssh-ed25519\n", true, true},
		{"a.conf", "http_proxy=http://ann:pw@proxy:1/\n", true, true},
		{"a.conf", "url=https://example.org/a@b\n", false, false},
		{"a.conf", "ann:$6$saltsalt$abcdefghijklmnopqrstuvwxyz\n", true, true},
		{"a.conf", "rootpw {SSHA}abcdefgh\n", true, true},
		{"a.conf", pemCert, false, false},
		{"a.conf", "api_key: x\n", false, true},
		{"a.conf", opaque, false, true},
		{"a.conf", strings.Repeat("0123456789abcdef", 2), false, true},
		{"a.conf", "/usr/lib/x86_64-linux-gnu/libfoo.so.12\n", false, false},
		{"a.conf", "a\x00b", false, true},
		{"zone", "TZif2\x00", false, false},
		{"app/private/a", "x", false, true},
		{"a.key", "x", true, true},
		{"a.p12", "\x30\x82", true, true},
		{".htpasswd", "x", true, true},
		{"credentials.ini", "x", false, true},
	} {
		content := []byte(c.content)
		if holds, may := holdsSecret(c.name, content), mayHoldSecret(c.name, content); holds != c.holds || may != c.may {
			t.Errorf("%s %q: holds %v, may hold %v", c.name, c.content, holds, may)
		}
	}
}

// TestTrustStore: boxes see a Java key store if it contains only certificates.
func TestTrustStore(t *testing.T) {
	entry := func(tag byte) string {
		return "\x00\x00\x00" + string(rune(tag)) + "\x00\x02ca" + "12345678" + "\x00\x05X.509" + "\x00\x00\x00\x04cert"
	}
	store := func(count byte, entries ...string) string {
		return "\xfe\xed\xfe\xed\x00\x00\x00\x02\x00\x00\x00" + string(rune(count)) + strings.Join(entries, "") + strings.Repeat("d", 20)
	}
	for content, want := range map[string]bool{
		store(2, entry(2), entry(2)): true, store(0): true,
		store(2, entry(2), entry(1)): false, store(1, entry(2), entry(1)): false, store(2, entry(2)): false, store(1, entry(2))[:40]: false, "": false,
		hex.EncodeToString([]byte(store(0))): false,
	} {
		if onlyTrusted([]byte(content)) != want {
			t.Errorf("%q: %v", content, !want)
		}
	}
}
