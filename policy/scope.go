package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/boxd/boxd/engine/spec"
)

// Bounds of a scope template and of its variables.
const (
	maxTemplate = 512
	maxVariable = 4096
	unknown     = "unknown"
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
func ScopeID(template string, vars map[string]string) (string, error) {
	for name, value := range vars {
		if len(value) > maxVariable {
			return "", &spec.FieldError{Field: "variables." + spec.Quote(name), Value: fmt.Sprintf("(%d bytes)", len(value)),
				Rule: fmt.Sprintf("must be at most %d bytes long", maxVariable)}
		}
	}
	expanded, err := expand(template, vars)
	if err != nil {
		return "", err
	}
	return encodeID(expanded), nil
}

func expand(template string, vars map[string]string) (string, error) {
	bad := func(rule string) (string, error) {
		return "", &spec.FieldError{Field: "scope", Value: spec.Quote(template), Rule: rule}
	}
	if template == "" || len(template) > maxTemplate {
		return bad(fmt.Sprintf("must be 1 to %d bytes long", maxTemplate))
	}
	var out strings.Builder
	for rest := template; rest != ""; {
		text, after, found := strings.Cut(rest, "{")
		if strings.Contains(text, "}") {
			return bad(`has a "}" without a "{"`)
		}
		out.WriteString(text)
		if !found {
			break
		}
		name, next, closed := strings.Cut(after, "}")
		if !closed || !validName(name, 64, alnum+"_-.") {
			return bad(`must have names of variables in its braces, such as {launcher_id}`)
		}
		value, ok := vars[name]
		if !ok {
			value = unknown
		}
		out.WriteString(value)
		rest = next
	}
	return out.String(), nil
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
