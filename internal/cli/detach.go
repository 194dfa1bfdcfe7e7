package cli

import (
	"bytes"
	"errors"
	"strings"
)

// detacher looks for the detach keys in the user's input.
type detacher struct {
	keys []byte // none: nothing is looked for
	seen int    // how many of them were the last to be typed, and are held back
}

// filter returns what of p is for the process. Once the keys are complete, leave is
// true and nothing behind them counts.
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

// fallBack gives out as many of the keys held back as cannot begin them any more.
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

// keysValue reads keys as docker writes them: letters and ctrl-X, with commas.
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
