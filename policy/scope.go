package policy

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/boxd/boxd/engine/spec"
)

// Bounds of a scope template and of its variables.
const (
	maxTemplate  = 512
	maxVariable  = 4096
	maxFallbacks = 8 // in each other
	unknown      = "unknown"
)

// Prefixes of IDs that stand for an expansion that is not a valid ID itself.
const (
	encodedPrefix = "enc:"
	hashedPrefix  = "sha256:"
)

// ScopeID expands template, in which {name} stands for a variable, and returns the
// session's ID. A variable that vars does not have becomes "unknown".
//
// Different expansions never have the same ID. An expansion that is a valid ID, and does
// not start with "enc:" or "sha256:", is the ID. Any other becomes "enc:" and the
// expansion, in which each byte outside A-Z, a-z, 0-9 and "_@-" is replaced by ":" and two
// hexadecimal digits; if that is too long, it becomes "sha256:" and the digest of the
// expansion.
//
// Different variables can have the same expansion: in {a}_{b}, "x_y" and "z" expand like
// "x" and "y_z". A template whose variables may contain its separator should have only one
// variable.
//
// Braces hold one of:
//
//	{name}            the variable; "unknown" if vars does not have it. With strict, a variable that is
//	                  missing or empty is refused: all callers without it would share a session
//	{name!}           the variable, which must not be missing or empty
//	{name:-template}  the variable or, if it is missing or empty, the expansion of template
//	{:uuid}           a new random UUID: each request has a session of its own
func ScopeID(template string, vars map[string]string, strict bool) (string, error) {
	for name, value := range vars {
		if len(value) > maxVariable {
			return "", &spec.FieldError{Field: "variables." + spec.Quote(name), Value: fmt.Sprintf("(%d bytes)", len(value)),
				Rule: fmt.Sprintf("must be at most %d bytes long", maxVariable)}
		}
	}
	parts, err := parseScope(template)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	if err := expandScope(&out, parts, vars, strict); err != nil {
		return "", err
	}
	return encodeID(out.String()), nil
}

// SessionID returns the ID of the session that r of tenant means by its scope or, if r has none, by
// the default of its token, its profile or its door.
func (p *Policy) SessionID(tenant string, r Request) (string, error) {
	scope := cmp.Or(r.Scope, r.TokenScope)
	if scope == "" {
		profile, err := p.profile(tenant, r.Profile)
		if err != nil {
			return "", err
		}
		scope = cmp.Or(profile.Scope, r.DoorScope)
	}
	if scope == "" {
		return "", &spec.FieldError{Field: "id", Value: `""`, Rule: "must be given, or scope: there is no default scope for this request"}
	}
	return ScopeID(scope, r.Variables, p.rules(tenant).strictScopes || r.StrictScope)
}

// ValidateScope checks the syntax of a scope template.
func ValidateScope(template string) error {
	_, err := parseScope(template)
	return err
}

// scopePart is a piece of a scope template: text, or what one pair of braces holds.
type scopePart struct {
	text     string
	name     string // of a variable
	required bool
	fallback []scopePart // nil: none
	uuid     bool
}

func parseScope(template string) ([]scopePart, error) {
	bad := func(rule string) ([]scopePart, error) {
		return nil, &spec.FieldError{Field: "scope", Value: spec.Quote(template), Rule: rule}
	}
	if template == "" || len(template) > maxTemplate {
		return bad(fmt.Sprintf("must be 1 to %d bytes long", maxTemplate))
	}
	parts, rest, ok := parseScopeParts(template, 0)
	if !ok {
		return bad(`must have {name}, {name!}, {name:-fallback} or {:uuid} in its braces, such as {launcher_id}`)
	}
	if rest != "" {
		return bad(`has a "}" without a "{"`)
	}
	return parts, nil
}

// parseScopeParts reads parts up to the end of text or a "}" that closes none of them. The result is
// never nil.
func parseScopeParts(text string, depth int) (parts []scopePart, rest string, ok bool) {
	parts = []scopePart{}
	for text != "" && text[0] != '}' {
		if i := strings.IndexAny(text, "{}"); i != 0 {
			if i < 0 {
				i = len(text)
			}
			parts = append(parts, scopePart{text: text[:i]})
			text = text[i:]
			continue
		}
		text = text[1:]
		if after, found := strings.CutPrefix(text, ":uuid}"); found {
			parts = append(parts, scopePart{uuid: true})
			text = after
			continue
		}
		part := scopePart{}
		end := strings.IndexAny(text, "!:}")
		if end < 0 || !validName(text[:end], 64, alnum+"_-.") {
			return nil, "", false
		}
		part.name, text = text[:end], text[end:]
		if after, found := strings.CutPrefix(text, ":-"); found {
			if depth == maxFallbacks {
				return nil, "", false
			}
			if part.fallback, text, ok = parseScopeParts(after, depth+1); !ok {
				return nil, "", false
			}
		} else if after, found := strings.CutPrefix(text, "!"); found {
			part.required, text = true, after
		}
		if text, ok = strings.CutPrefix(text, "}"); !ok {
			return nil, "", false
		}
		parts = append(parts, part)
	}
	return parts, text, true
}

func expandScope(out *strings.Builder, parts []scopePart, vars map[string]string, strict bool) error {
	for _, p := range parts {
		value, given := vars[p.name]
		switch {
		case p.text != "":
			out.WriteString(p.text)
		case p.uuid:
			out.WriteString(newUUID())
		case value != "":
			out.WriteString(value)
		case p.fallback != nil:
			if err := expandScope(out, p.fallback, vars, strict); err != nil {
				return err
			}
		case p.required:
			return &spec.FieldError{Field: "variables." + p.name, Value: spec.Quote(value), Rule: "must be given: the scope requires {" + p.name + "!}"}
		case strict:
			return &spec.FieldError{Field: "variables." + p.name, Value: spec.Quote(value),
				Rule: "must be given: this scope is strict, because everybody without {" + p.name + "} would share one session; {" + p.name + ":-other} gives it a fallback"}
		case !given:
			out.WriteString(unknown)
		}
	}
	return nil
}

// newUUID returns a random UUID, version 4 of RFC 9562.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// encodeID returns a valid session ID for every string, and never the same one for two.
func encodeID(s string) string {
	reserved := strings.HasPrefix(s, encodedPrefix) || strings.HasPrefix(s, hashedPrefix)
	if !reserved && ValidateSessionID(s) == nil {
		return s
	}
	var out strings.Builder
	out.WriteString(encodedPrefix)
	for _, c := range []byte(s) {
		if strings.IndexByte(alnum+"_@-", c) >= 0 {
			out.WriteByte(c)
		} else {
			fmt.Fprintf(&out, ":%02x", c)
		}
	}
	if out.Len() > sessionIDLen {
		sum := sha256.Sum256([]byte(s))
		return hashedPrefix + hex.EncodeToString(sum[:])
	}
	return out.String()
}
