package api

import (
	"bufio"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// minToken is the minimum length of a token: 20 characters of base64 are 120 bits.
const minToken = 20

// maxTokenFile bounds the file; a line has about a hundred bytes.
const maxTokenFile = 1 << 20

// Tokens are bearer tokens and the identities that they stand for. Only digests are kept in
// memory. It is safe for concurrent use.
type Tokens struct {
	entries atomic.Pointer[[]tokenEntry]
}

type tokenEntry struct {
	digest [sha256.Size]byte
	id     Identity
	page   pageKey
	gone   chan struct{} // id.Gone, to be closed
}

// sameCaller reports whether a token stands for what it stood for before, so that what it has begun may go on.
func (e *tokenEntry) sameCaller(before *tokenEntry) bool {
	return e.digest == before.digest && e.id.Tenant == before.id.Tenant && e.id.Role == before.id.Role
}

// LoadTokens reads a file with lines "token tenant role [name] [scope=TEMPLATE] [LIMIT=NUMBER...]",
// separated by blanks; "#" begins a comment. role is admin, operator or viewer; the tenant "*" stands
// for all; scope is [Identity.Scope]; a LIMIT is a key of [policy.Rates]. Tokens that may act for one tenant
// have different names. Other users must have no access to the file.
func LoadTokens(path string) (*Tokens, error) {
	t := &Tokens{}
	if err := t.Reload(path); err != nil {
		return nil, err
	}
	return t, nil
}

// Reload reads the file again. After an error nothing has changed. Streams of a token that is not in the file
// any more, or has another tenant or role there, end.
func (t *Tokens) Reload(path string) error {
	// O_NONBLOCK, because opening a FIFO would wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("tokens_file: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("tokens_file: %w", err)
	}
	if !st.Mode().IsRegular() {
		return &engine.FieldError{Field: "tokens_file", Value: spec.Quote(path), Rule: "must be a regular file"}
	}
	if st.Mode().Perm()&0o007 != 0 {
		return &engine.FieldError{Field: "tokens_file", Value: fmt.Sprintf("%q with mode %04o", path, st.Mode().Perm()), Rule: "must not be accessible to others: chmod o= it"}
	}
	if st.Size() > maxTokenFile {
		return &engine.FieldError{Field: "tokens_file", Value: fmt.Sprintf("%q of %s", path, spec.FormatSize(st.Size())), Rule: "must have at most " + spec.FormatSize(maxTokenFile)}
	}
	entries, err := parseTokens(io.LimitReader(f, maxTokenFile))
	if err != nil {
		return fmt.Errorf("tokens_file %q: %w", path, err)
	}
	var before []tokenEntry
	if b := t.entries.Load(); b != nil {
		before = *b
	}
	kept := make([]bool, len(before))
	for i := range entries {
		e := &entries[i]
		at := slices.IndexFunc(before, func(o tokenEntry) bool { return o.digest == e.digest })
		if at < 0 {
			continue
		}
		if b := &before[at].id; b.Limits.Rates() == e.id.Limits.Rates() && b.Actor == e.id.Actor { // what was counted stays
			e.id.Limits = b.Limits
		}
		if e.sameCaller(&before[at]) {
			e.gone, e.id.Gone, kept[at] = before[at].gone, before[at].gone, true
		}
	}
	t.entries.Store(&entries)
	// After the new entries count: a stream that begins now finds either them or its own end.
	for i, k := range kept {
		if !k {
			close(before[i].gone)
		}
	}
	return nil
}

// parseTokens names the line in its errors, and never a token.
func parseTokens(r io.Reader) ([]tokenEntry, error) {
	var entries []tokenEntry
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		e, err := newToken(fields, entries)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		entries = append(entries, e)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, errors.New("no token in it: add a line \"token tenant role\"")
	}
	return entries, nil
}

func newToken(fields []string, others []tokenEntry) (tokenEntry, error) {
	fields, o, err := tokenOptions(fields)
	if err != nil {
		return tokenEntry{}, err
	}
	if len(fields) < 3 || len(fields) > 4 {
		return tokenEntry{}, fmt.Errorf("%d fields: must be token, tenant, role and perhaps a name, scope=TEMPLATE and limits such as execs=5", len(fields))
	}
	if len(fields[0]) < minToken {
		return tokenEntry{}, fmt.Errorf("token of %d characters: must have at least %d, such as those of \"openssl rand -base64 32\"", len(fields[0]), minToken)
	}
	digest := sha256.Sum256([]byte(fields[0]))
	key := hex.EncodeToString(mac(digest[:], []byte("boxd caller 1")))
	name := key[:shownKey]
	if len(fields) == 4 {
		name = fields[3]
	}
	id, err := newIdentity(fields[1], fields[2], "token:"+name)
	if err != nil {
		return tokenEntry{}, err
	}
	gone := make(chan struct{})
	id.Scope, id.Limits, id.Key, id.Gone = o.scope, policy.NewTokenLimiter(name, o.rates), "token:"+key, gone
	for _, other := range others {
		switch o := &other.id; {
		case other.digest == digest:
			return tokenEntry{}, fmt.Errorf("token is that of %s already: each must stand for one identity", o.Actor)
		case o.Actor == id.Actor && (o.Tenant == id.Tenant || o.all() || id.all()):
			return tokenEntry{}, fmt.Errorf("name %s: a token for tenant %q has it already, and logs and scopes could not tell the two apart: give each its own name", spec.Quote(name), o.Tenant)
		}
	}
	return tokenEntry{digest, id, newPageKey(digest), gone}, nil
}

// options of a token.
type options struct {
	scope string
	rates policy.Rates
}

// tokenOptions splits the options at the end of a line from the fields in front of them.
func tokenOptions(fields []string) (front []string, o options, err error) {
	seen := map[string]bool{}
	for front = fields; len(front) > 3; front = front[:len(front)-1] {
		key, value, found := strings.Cut(front[len(front)-1], "=")
		if !found {
			break
		}
		known := key == "scope"
		if known {
			o.scope, err = value, policy.ValidateScope(value)
		} else {
			known, err = o.rates.Set(key, value)
		}
		switch {
		case err != nil:
			return nil, o, err
		case !known:
			return nil, o, fmt.Errorf("unknown option %s: there are scope=, requests=, creates=, execs=, and requests_burst= and the like", spec.Quote(key+"="))
		case seen[key]:
			return nil, o, fmt.Errorf("%s= is there twice", key)
		}
		seen[key] = true
	}
	return front, o, o.rates.Validate("")
}

// lookup compares the token with every entry, whichever matches, so that its duration
// reveals nothing.
func (t *Tokens) lookup(token string) (id Identity, ok bool) {
	if e := t.entry(token); e != nil {
		return e.id, true
	}
	return Identity{}, false
}

// entry is lookup with all that belongs to the token; nil: it is unknown.
func (t *Tokens) entry(token string) *tokenEntry {
	if t == nil {
		return nil
	}
	entries := *t.entries.Load()
	digest := sha256.Sum256([]byte(token))
	found := -1
	for i := range entries {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(digest[:], entries[i].digest[:]), i, found)
	}
	if found < 0 {
		return nil
	}
	return &entries[found]
}
