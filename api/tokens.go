package api

import (
	"bufio"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/boxd/boxd/engine"
)

// minToken is the fewest characters of a token: 20 of base64 are 120 bits.
const minToken = 20

// maxTokenFile bounds the file; a line has some hundred bytes.
const maxTokenFile = 1 << 20

// Tokens are bearer tokens and whom they stand for. Only digests are kept.
type Tokens struct {
	entries []tokenEntry
}

type tokenEntry struct {
	digest [sha256.Size]byte
	id     Identity
}

// LoadTokens reads a file with lines "token tenant role [name]", separated by
// blanks; "#" begins a comment. role is admin, operator or viewer; the tenant "*"
// stands for all. The file must not be open to others.
func LoadTokens(path string) (*Tokens, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	if st.Mode().Perm()&0o007 != 0 {
		return nil, &engine.FieldError{Field: "tokens file", Value: fmt.Sprintf("%q with mode %04o", path, st.Mode().Perm()), Rule: "must not be accessible to others: chmod o= it"}
	}
	t, err := ParseTokens(io.LimitReader(f, maxTokenFile))
	if err != nil {
		return nil, fmt.Errorf("tokens file %q: %w", path, err)
	}
	return t, nil
}

// ParseTokens reads what LoadTokens reads from a file. Errors name the line, and
// never a token.
func ParseTokens(r io.Reader) (*Tokens, error) {
	t := &Tokens{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		if err := t.add(fields, n); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(t.entries) == 0 {
		return nil, errors.New("no token in it: add a line \"token tenant role\"")
	}
	return t, nil
}

func (t *Tokens) add(fields []string, line int) error {
	if len(fields) < 3 || len(fields) > 4 {
		return fmt.Errorf("%d fields: must be token, tenant, role and perhaps a name", len(fields))
	}
	if len(fields[0]) < minToken {
		return fmt.Errorf("token of %d characters: must have at least %d, such as those of \"openssl rand -base64 32\"", len(fields[0]), minToken)
	}
	name := fmt.Sprintf("line-%d", line)
	if len(fields) == 4 {
		name = fields[3]
	}
	id, err := newIdentity(fields[1], fields[2], "token:"+name)
	if err != nil {
		return err
	}
	e := tokenEntry{sha256.Sum256([]byte(fields[0])), id}
	for _, other := range t.entries {
		if other.digest == e.digest {
			return fmt.Errorf("token is that of %s already: each must stand for one", other.id.Actor)
		}
	}
	t.entries = append(t.entries, e)
	return nil
}

// lookup compares with every entry, whichever matches, so that the time it takes
// says nothing.
func (t *Tokens) lookup(token string) (id Identity, ok bool) {
	if t == nil {
		return Identity{}, false
	}
	digest := sha256.Sum256([]byte(token))
	found := -1
	for i := range t.entries {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(digest[:], t.entries[i].digest[:]), i, found)
	}
	if found < 0 {
		return Identity{}, false
	}
	return t.entries[found].id, true
}
