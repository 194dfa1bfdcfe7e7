package rootfs

// etcNames are the parts of the host's /etc that a box gets: what programs read
// in order to work, and nothing that tells about the host or holds secrets.
//
// Of each name a symlink stays the same symlink, a file is copied, a small
// directory is copied and a large one is bound. Names that the host lacks are
// left out, and so is all that not everybody may read on the host.
//
// Left out on purpose: shadow, gshadow, sudoers, ssh, ssl/private, machine-id
// and fstab; files that often hold tokens or passwords (gitconfig, npmrc,
// pip.conf, environment, wgetrc, apt, maven, gemrc, php); and what only services
// read (cron, systemd, pam, security, dbus, init).
var etcNames = []string{
	// Dynamic loader.
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d",
	// Which compiler, editor, java … the short names mean.
	"alternatives",
	// Certificate authorities: Debian, Alpine, Arch; then Fedora and SUSE.
	"ssl/certs", "ssl/openssl.cnf", "ssl/cert.pem", "ca-certificates.conf",
	"pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust/extracted", "crypto-policies",
	// Time and language.
	"localtime", "timezone", "locale.conf", "locale.alias", "default/locale",
	// Names of protocols, ports and file types.
	"protocols", "services", "networks", "rpc", "ethertypes", "host.conf", "gai.conf", "mime.types", "magic", "magic.mime",
	// Which system this is.
	"os-release", "lsb-release", "debian_version", "redhat-release", "alpine-release", "issue",
	// Shells and terminals.
	"bash.bashrc", "bashrc", "inputrc", "shells", "terminfo", "mtab", "login.defs",
	// Languages and their libraries.
	"python3", "python3.*", "python2.*", "perl", "R", "java", "java-*", "jvm*", "mono", "node", "nodejs", "texmf",
	"ImageMagick*", "OpenCL", "fonts", "xml", "sgml", "dictionaries-common", "groff", "papersize",
}

// maxCopiedDir is how many entries a directory of /etc may have, those of its
// subdirectories included, to be copied instead of bound. A mount costs every
// box some 5 µs in three copies, a copied file costs the launcher 10 µs once.
const maxCopiedDir = 12

// maxCopiedFile bounds a copied file in bytes; the largest is ld.so.cache with
// some 100 KB. What is larger is not for programs in a box.
const maxCopiedFile = 4 << 20
