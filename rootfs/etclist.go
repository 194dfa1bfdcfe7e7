package rootfs

import (
	"path"
	"slices"
	"strings"
)

// generatedEtc lists files of /etc that the C library, TLS, shells and language runtimes read,
// but that belong to no package, because scripts of packages or the administrator create them.
// Patterns are those of path.Match.
var generatedEtc = []string{
	// Dynamic loader.
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d/*.conf",
	// Certificate authorities: Debian, Alpine, Arch; then Fedora and SUSE.
	"ssl/certs/*", "ssl/certs/java/cacerts", "ssl/cert.pem", "ca-certificates.conf",
	"pki/tls/certs/*", "pki/tls/cert.pem", "pki/ca-trust/extracted/*/*",
	// Time and language.
	"localtime", "timezone", "locale.conf", "locale.alias", "locale.gen", "default/locale",
	// Names of protocols, ports and file types.
	"protocols", "services", "networks", "rpc", "ethertypes", "host.conf", "gai.conf", "mime.types", "magic", "magic.mime",
	// Which system this is.
	"os-release", "lsb-release", "debian_version", "redhat-release", "alpine-release", "issue",
	// Shells and terminals.
	"bash.bashrc", "bashrc", "inputrc", "shells", "mtab", "login.defs",
	// Languages and documents.
	"python3/debian_config", "xml/*", "sgml/*", "papersize",
}

// unpackagedEtc lists the parts of /etc that presumably belong to packages, for hosts whose
// package database cannot be read.
var unpackagedEtc = []string{
	"alternatives", "ssl/openssl.cnf", "pki/tls/openssl.cnf", "crypto-policies", "terminfo",
	"python3", "python3.*", "python2.*", "perl", "R", "java", "java-*", "jvm*", "mono", "node", "nodejs", "texmf",
	"ImageMagick*", "OpenCL", "fonts", "dictionaries-common", "groff", "manpath.config", "man_db.conf",
	"chromium", "chromium.d", "matplotlibrc", "maven", "X11", "gtk-*", "xdg", "vim", "mke2fs.conf",
}

// isGenerated reports whether name, relative to /etc, matches generatedEtc.
func isGenerated(name string) bool {
	return slices.ContainsFunc(generatedEtc, func(pattern string) bool {
		ok, _ := path.Match(pattern, name)
		return ok
	})
}

// isExpected reports whether name, relative to /etc, or a directory above it matches
// unpackagedEtc.
func isExpected(name string) bool {
	return slices.ContainsFunc(unpackagedEtc, func(pattern string) bool {
		parts := strings.SplitN(name, "/", strings.Count(pattern, "/")+2)
		prefix := strings.Join(parts[:min(len(parts), strings.Count(pattern, "/")+1)], "/")
		ok, _ := path.Match(pattern, prefix)
		return ok
	})
}

// Bounds of the copy of /etc. The largest file is ld.so.cache or the bundle of certificate
// authorities, with some 200 KB. Debian with a desktop has some 3,000 entries.
const (
	maxEtcFile    = 4 << 20
	maxEtcBytes   = 14 << 20 // of all files; the template is a tmpfs of templateSize
	maxEtcEntries = 20_000
)
