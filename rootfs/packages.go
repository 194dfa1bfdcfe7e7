package rootfs

import (
	"bufio"
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// packagedEtc maps files in /etc that belong to packages, by their names relative to /etc, to
// the digests that they had in the package according to the host's package manager. Digests
// are in hexadecimal; the length distinguishes MD5, SHA-1 and SHA-256.
type packagedEtc map[string]string

// packageFiles are the databases of package managers: dpkg, apk, pacman, rpm (three formats).
var packageFiles = []string{
	"var/lib/dpkg/status", "lib/apk/db/installed", "usr/lib/apk/db/installed", "var/lib/pacman/local",
	"var/lib/rpm/rpmdb.sqlite", "var/lib/rpm/Packages.db", "var/lib/rpm/Packages",
	"usr/lib/sysimage/rpm/rpmdb.sqlite", "usr/lib/sysimage/rpm/Packages.db",
}

// readPackages reads the databases of the system below root. It skips databases that are
// missing or cannot be read; files of their packages then count as files of no package.
func readPackages(root string) packagedEtc {
	p := packagedEtc{}
	each := func(path string, read func(*bufio.Scanner)) {
		file, err := os.Open(filepath.Join(root, path))
		if err != nil {
			return
		}
		defer file.Close()
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<20)
		read(lines)
	}
	each(packageFiles[0], p.readDpkg)
	each(packageFiles[1], p.readApk)
	each(packageFiles[2], p.readApk)
	found, _ := filepath.Glob(filepath.Join(root, packageFiles[3], "*", "files"))
	for _, path := range found {
		each(strings.TrimPrefix(path, filepath.Clean(root)), p.readPacman)
	}
	for _, path := range packageFiles[4:] {
		if _, err := os.Stat(filepath.Join(root, path)); err == nil {
			p.readRPM(root)
			break
		}
	}
	return p
}

// add records a file of a package. It ignores files outside of /etc and files without a digest.
func (p packagedEtc) add(path, digest string) {
	name, ok := strings.CutPrefix(path, "/etc/")
	if ok && len(digest) >= hex.EncodedLen(md5.Size) {
		p[name] = digest
	}
}

// readDpkg reads lines such as " /etc/wgetrc c43064699caf6109f4b3da0405c06ebb" from the
// Conffiles fields of dpkg's status (deb-conffiles(5)). By Debian policy 10.7, every file of a
// package in /etc is a conffile.
func (p packagedEtc) readDpkg(lines *bufio.Scanner) {
	for lines.Scan() {
		if !bytes.HasPrefix(lines.Bytes(), []byte(" /etc/")) {
			continue
		}
		if f := strings.Fields(lines.Text()); len(f) == 2 { // more: "obsolete", "remove-on-upgrade"
			p.add(f[0], f[1])
		}
	}
}

// readApk reads lines "F:" directory, "R:" file and "Z:Q1" SHA-1 in base64 (apk-package(5)).
func (p packagedEtc) readApk(lines *bufio.Scanner) {
	var dir, file string
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		switch key {
		case "F":
			dir = value
		case "R":
			file = value
		case "Z":
			sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(value, "Q1"))
			if err == nil && strings.HasPrefix(value, "Q1") {
				p.add("/"+dir+"/"+file, hex.EncodeToString(sum))
			}
		}
	}
}

// readPacman reads the lines below "%BACKUP%": a path and its MD5.
func (p packagedEtc) readPacman(lines *bufio.Scanner) {
	backup := false
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "%") {
			backup = line == "%BACKUP%"
			continue
		}
		if path, digest, ok := strings.Cut(line, "\t"); ok && backup {
			p.add("/"+path, digest)
		}
	}
}

// rpmTime bounds the query to rpm, which takes a second with 3,000 packages.
const rpmTime = 20 * time.Second

// readRPM runs the host's rpm, because the database has one of three binary formats.
func (p packagedEtc) readRPM(root string) {
	ctx, cancel := context.WithTimeout(context.Background(), rpmTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/usr/bin/rpm", "--root", root, "-qa", "--qf", `[%{FILENAMES}\t%{FILEDIGESTS}\n]`)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/"}
	out, err := cmd.Output()
	if err != nil {
		return
	}
	for line := range strings.Lines(string(out)) {
		path, digest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		p.add(path, digest)
	}
}

// has reports whether the file name belongs to a package, and whether it is unchanged.
func (p packagedEtc) has(name string, content []byte) (packaged, unchanged bool) {
	want, ok := p[name]
	if !ok {
		return false, false
	}
	var h hash.Hash
	switch len(want) {
	case hex.EncodedLen(md5.Size):
		h = md5.New()
	case hex.EncodedLen(sha1.Size):
		h = sha1.New()
	case hex.EncodedLen(sha256.Size):
		h = sha256.New()
	default:
		return true, false
	}
	h.Write(content)
	return true, hex.EncodeToString(h.Sum(nil)) == want
}
