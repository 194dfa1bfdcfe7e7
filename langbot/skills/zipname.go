package skills

import (
	"path"
	"strings"
	"unicode/utf8"
)

// Bounds of the names in an archive.
const (
	maxZipName      = 1024 // bytes
	maxZipComponent = 255  // bytes, NAME_MAX
	maxZipDepth     = 32
)

// zipName checks and cleans the name of an entry, so that it is safe to create below a directory:
// relative, valid UTF-8. dir reports whether it ends in "/".
func zipName(raw string, utf8Flag bool) (name string, dir bool, err error) {
	text := raw
	if !utf8.ValidString(text) {
		if utf8Flag {
			return "", false, refuseName(raw, "is not valid UTF-8")
		}
		text = fromCP437(text) // the encoding of names without the flag, APPNOTE.TXT D.1
	}
	if why := nameTrouble(text); why != "" {
		return "", false, refuseName(raw, why)
	}
	return path.Clean(text), strings.HasSuffix(text, "/"), nil
}

// nameTrouble says what is wrong with the name of an entry, "" if nothing is.
func nameTrouble(name string) string {
	clean := path.Clean(name)
	switch {
	case name == "" || clean == ".":
		return "is empty"
	case len(name) > maxZipName:
		return "is too long"
	case path.IsAbs(name):
		return "is absolute"
	case len(name) > 1 && name[1] == ':':
		return "names a drive"
	case strings.ContainsRune(name, '\\'):
		return `has a "\": directories are separated by "/"`
	case strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		return "has control characters"
	case strings.Count(clean, "/") >= maxZipDepth:
		return "is too deep"
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "leads out of it"
		}
		if len(part) > maxZipComponent {
			return "is too long"
		}
	}
	return ""
}

func refuseName(name, why string) error {
	if len(name) > 200 {
		name = name[:200] + "…"
	}
	return refuse("Uploaded archive contains an unsafe path: %s %s", quote(strings.ToValidUTF8(name, "\ufffd")), why)
}

var cp437 = []rune("ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u00a0")

func fromCP437(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if s[i] < 0x80 {
			b.WriteByte(s[i])
		} else {
			b.WriteRune(cp437[s[i]-0x80])
		}
	}
	return b.String()
}
