package rootfs

import (
	"path"
	"strings"
)

// generatedEtc are files of /etc that belong to no package, because a package's
// scripts or the administrator make them, and that the C library, TLS, shells and
// language runtimes read. A pattern matches whole path components (path.Match).
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

// unpackagedEtc are the parts of /etc that packages are expected to own, for hosts whose
// package database this package cannot read.
var unpackagedEtc = []string{
	"alternatives", "ssl/openssl.cnf", "pki/tls/openssl.cnf", "crypto-policies", "terminfo",
	"python3", "python3.*", "python2.*", "perl", "R", "java", "java-*", "jvm*", "mono", "node", "nodejs", "texmf",
	"ImageMagick*", "OpenCL", "fonts", "dictionaries-common", "groff", "manpath.config", "man_db.conf",
	"chromium", "chromium.d", "matplotlibrc", "maven", "X11", "gtk-*", "xdg", "vim", "mke2fs.conf",
}

// isGenerated says that name, relative to /etc, is one of generatedEtc.
func isGenerated(name string) bool {
	for _, pattern := range generatedEtc {
		if ok, _ := path.Match(pattern, name); ok {
			return true
		}
	}
	return false
}

// isExpected says that name, or a directory above it, is one of unpackagedEtc.
func isExpected(name string) bool {
	for _, pattern := range unpackagedEtc {
		parts := strings.SplitN(name, "/", strings.Count(pattern, "/")+2)
		prefix := strings.Join(parts[:min(len(parts), strings.Count(pattern, "/")+1)], "/")
		if ok, _ := path.Match(pattern, prefix); ok {
			return true
		}
	}
	return false
}

// Bounds of what is shown of /etc. The largest file is ld.so.cache or the bundle of
// certificate authorities, with some 200 KB; Debian with a desktop has some 3,000 entries.
const (
	maxEtcFile    = 4 << 20
	maxEtcBytes   = 14 << 20 // of all files; the template is a tmpfs of templateSize
	maxEtcEntries = 20_000
)
