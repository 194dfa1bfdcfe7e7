package rootfs

import (
	"bytes"
	"encoding/binary"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
)

// pattern compiles an expression at its first use: every box starts this program twice without
// using any.
func pattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

var (
	// The beginning of a private key in one of the text formats. Just the words would also match
	// the tables of file(1).
	privateKey = pattern(`-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY( BLOCK)?-----(\s|\\[nr])*([A-Za-z0-9+/]{16}|[A-Z][A-Za-z-]+: )|PuTTY-User-Key-File-[0-9]|AGE-SECRET-KEY-1`)
	// A password in an address.
	userinfo = pattern(`://[^/\s:@"'<>]+:[^/\s@"'<>]+@`)
	// A hash of crypt(3), as in shadow and htpasswd files.
	cryptHash = pattern(`\$(1|2[abxy]|5|6|y|7|gy|apr1|argon2[id]{1,2})\$[./A-Za-z0-9,=$]{16,}|\{SS?HA[0-9]*\}`)
	// Words that announce a secret.
	secretWords = pattern(`(?i)passw(or)?d|passphrase|secret|token|credential|api[-_ ]?key|auth[-_ ]?key|access[-_ ]?key|private[-_ ]?key|authorization|bearer`)
	// A run of characters that can occur in keys and tokens.
	opaqueRun = pattern(`[A-Za-z0-9+/_=-]{20,}`)
	// A certificate, which is public.
	certificate = pattern(`(?s)-----BEGIN (TRUSTED )?CERTIFICATE-----\r?\n[A-Za-z0-9+/=\s]*-----END (TRUSTED )?CERTIFICATE-----`)
)

// secretNames are suspicious words in the name of a file or of a directory above it.
var secretNames = []string{
	"private", "key", "keys", "secret", "secrets", "token", "tokens", "password", "passwords", "passwd", "htpasswd", "htdigest",
	"shadow", "credential", "credentials", "creds", "netrc", "pgpass", "p12", "pfx", "jks", "keystore", "keytab", "kdbx", "ppk",
}

// holdsSecret reports whether a file certainly looks like a secret, even in a package.
func holdsSecret(name string, content []byte) bool {
	base := strings.ToLower(path.Base(name))
	switch path.Ext(base) {
	case ".key", ".p12", ".pfx", ".jks", ".keytab", ".kdbx", ".ppk":
		return true
	}
	has := func(text string) bool { return bytes.Contains(content, []byte(text)) } // faster than an expression
	switch {
	case strings.Contains(base, "htpasswd"):
		return true
	case (has("PRIVATE KEY") || has("PuTTY") || has("AGE-SECRET")) && privateKey().Match(content):
		return true
	case has("://") && has("@") && userinfo().Match(content):
		return true
	}
	return (has("$") || has("{S")) && cryptHash().Match(content)
}

// mayHoldSecret reports whether a file that no package vouches for may hold a secret. When in
// doubt it says yes: for a binary file of an unknown kind, a suspicious word in the name or in
// the text, or a string that looks random.
func mayHoldSecret(name string, content []byte) bool {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if slices.ContainsFunc(words, func(word string) bool { return slices.Contains(secretNames, word) }) {
		return true
	}
	if bytes.IndexByte(content, 0) >= 0 {
		return !knownBinary(content)
	}
	if holdsSecret(name, content) {
		return true
	}
	text := certificate().ReplaceAll(content, nil)
	return secretWords().Match(text) || slices.ContainsFunc(opaqueRun().FindAll(text, -1), looksRandom)
}

// looksRandom reports whether a run of 20 characters or more is not a word, path or option: it
// has digits and letters of both cases, or is a hexadecimal number.
func looksRandom(run []byte) bool {
	var upper, lower, digit, hexa int
	for _, c := range run {
		switch {
		case c >= '0' && c <= '9':
			digit++
			hexa++
		case c >= 'a' && c <= 'z':
			lower++
		case c >= 'A' && c <= 'Z':
			upper++
		}
		if c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' {
			hexa++
		}
	}
	return digit >= 2 && upper >= 2 && lower >= 2 || hexa == len(run) && digit >= 2
}

// knownBinary reports whether a file is a cache of the dynamic loader, a time zone, or a Java
// key store that contains only certificates.
func knownBinary(content []byte) bool {
	magics := []string{"ld.so-1.7.0", "glibc-ld.so.cache", "TZif"}
	return onlyTrusted(content) || slices.ContainsFunc(magics, func(magic string) bool { return bytes.HasPrefix(content, []byte(magic)) })
}

// onlyTrusted reports whether store is a Java key store that contains only certificates. The
// format (sun.security.provider.JavaKeyStore) is magic, version and number of entries, each with
// a tag (1 private key, 2 certificate), an alias, a date, a type and the certificate, and at the
// end a digest of 20 bytes.
func onlyTrusted(store []byte) bool {
	if len(store) < 12 || binary.BigEndian.Uint32(store) != 0xfeedfeed || binary.BigEndian.Uint32(store[4:]) != 2 {
		return false
	}
	count, rest, good := binary.BigEndian.Uint32(store[8:]), store[12:], true
	take := func(n uint32) []byte {
		if uint64(n) > uint64(len(rest)) {
			good, rest = false, nil
			return make([]byte, 4)
		}
		taken := rest[:n]
		rest = rest[n:]
		return taken
	}
	text := func() { take(uint32(binary.BigEndian.Uint16(take(2)))) }
	for range count {
		if binary.BigEndian.Uint32(take(4)) != 2 || !good {
			return false
		}
		text()
		take(8)
		text()
		take(binary.BigEndian.Uint32(take(4)))
	}
	return good && len(rest) == 20
}
