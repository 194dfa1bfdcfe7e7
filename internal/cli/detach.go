package cli

import (
	"bytes"
	"errors"
	"strings"
)

// detacher looks for the detach keys in the user's input.
type detacher struct {
	keys []byte // empty: there are none
	seen int    // how many of them the user has typed last; they are held back
}

// filter returns the part of p that is for the process. When the user has typed all detach keys,
// leave is true, and the rest of p is dropped.
func (d *detacher) filter(p []byte) (out []byte, leave bool) {
	if len(d.keys) == 0 {
		return p, false
	}
	for i, b := range p {
		for d.seen > 0 && b != d.keys[d.seen] {
			d.fallBack(&out)
		}
		if b != d.keys[d.seen] {
			out = append(out, p[i])
			continue
		}
		if d.seen++; d.seen == len(d.keys) {
			return out, true
		}
	}
	return out, false
}

// fallBack releases held keys, until the rest is a beginning of the detach keys again.
func (d *detacher) fallBack(out *[]byte) {
	held := d.keys[:d.seen]
	for n := 1; ; n++ {
		if bytes.HasPrefix(d.keys, held[n:]) {
			*out = append(*out, held[:n]...)
			d.seen -= n
			return
		}
	}
}

// keysValue reads keys in docker's form: characters and ctrl-X, separated by commas.
func keysValue(dst *[]byte) *textValue {
	return &textValue{"ctrl-p,ctrl-q", func(s string) error {
		*dst = nil
		if s == "" {
			return nil
		}
		for key := range strings.SplitSeq(s, ",") {
			b, err := parseKey(key)
			if err != nil {
				return err
			}
			*dst = append(*dst, b)
		}
		return nil
	}}
}

func parseKey(key string) (byte, error) {
	letter, control := strings.CutPrefix(key, "ctrl-")
	if len(letter) == 1 {
		switch b := letter[0]; {
		case !control && b > ' ' && b < 0x7f:
			return b, nil
		case control && (b >= 'a' && b <= 'z' || b >= '@' && b <= '_'):
			return b & 0x1f, nil
		}
	}
	return 0, errors.New(`must be keys with commas between them, each one character or ctrl- and a letter`)
}
