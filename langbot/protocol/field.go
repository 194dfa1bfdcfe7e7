package protocol

import (
	"errors"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// field is a value and its name in errors. Its methods are as tolerant as the peer's own
// validation: numbers and booleans may be written as strings.
type field struct {
	class Class
	name  string
	raw   []byte
}

// fail returns the error for a value that breaks rule.
func (f field) fail(rule string) error {
	return Errorf(f.class, "%s: %s: %s", f.name, show(f.raw), rule)
}

// show truncates a value so that an error can quote it.
func show(raw []byte) string {
	const most = 80
	if len(raw) <= most {
		return string(raw)
	}
	i := most
	for i > 0 && !utf8.RuneStart(raw[i]) {
		i--
	}
	return string(raw[:i]) + "…"
}

func (f field) null() bool { return string(f.raw) == "null" }

// str parses a string, without further rules.
func (f field) str() (string, error) {
	if f.raw[0] != '"' {
		return "", f.fail("want a string")
	}
	s, ok := unquote(f.raw)
	if !ok {
		return "", f.fail("half of a surrogate pair is no character: send valid Unicode")
	}
	return s, nil
}

// text parses a string that can be an argument of a program.
func (f field) text() (string, error) {
	s, err := f.str()
	if err == nil && strings.IndexByte(s, 0) >= 0 {
		return "", f.fail("contains a NUL character: leave it out")
	}
	return s, err
}

// maxShort is the maximum length, in bytes, of a name or path that is kept as long as its
// session: PATH_MAX.
const maxShort = 4096

// short parses a text of bounded length.
func (f field) short() (string, error) {
	s, err := f.text()
	if err == nil && len(s) > maxShort {
		return "", f.fail("has " + strconv.Itoa(len(s)) + " bytes: must have at most " + strconv.Itoa(maxShort))
	}
	return s, err
}

// trimmed parses a text, without white space at its ends.
func (f field) trimmed() (string, error) {
	s, err := f.text()
	return Trim(s), err
}

// trimmedIf parses a string with get, trims it, and checks that it is ok.
func (f field) trimmedIf(get func(field) (string, error), ok func(string) bool, rule string) (string, error) {
	s, err := get(f)
	if s = Trim(s); err == nil && !ok(s) {
		return "", f.fail(rule)
	}
	return s, err
}

// nonEmpty parses a text that is not empty once trimmed.
func (f field) nonEmpty() (string, error) { return f.trimmedIf(field.text, isSet, "must not be empty") }

// nonEmptyID is nonEmpty for a name that is never passed to a program verbatim.
func (f field) nonEmptyID() (string, error) {
	return f.trimmedIf(field.str, isSet, "must not be empty")
}

func isSet(s string) bool { return s != "" }

// inside parses an absolute path in a box.
func (f field) inside() (string, error) {
	return f.trimmedIf(field.short, path.IsAbs, "must be an absolute path inside the sandbox: begin it with /")
}

// host parses an absolute path of the host, in the form of Unix or Windows.
func (f field) host() (string, error) {
	return f.trimmedIf(field.short, isAbs, "must be an absolute host path: begin it with /")
}

func isAbs(s string) bool {
	drive := len(s) > 2 && s[1] == ':' && (s[2] == '/' || s[2] == '\\')
	return drive || strings.HasPrefix(s, "/") || strings.HasPrefix(s, `\`)
}

// oneOf parses one of these words.
func (f field) oneOf(words ...string) (string, error) {
	if s, err := f.str(); err == nil && slices.Contains(words, s) {
		return s, nil
	}
	return "", f.fail("must be one of " + strings.Join(words, ", "))
}

// boolean parses true or false, or a number or word that means one of them.
func (f field) boolean() (bool, error) {
	switch string(f.raw) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	if s, err := f.str(); err == nil {
		switch strings.ToLower(s) {
		case "1", "on", "t", "true", "y", "yes":
			return true, nil
		case "0", "off", "f", "false", "n", "no":
			return false, nil
		}
	} else if n, err := f.number(); err == nil && (n == 0 || n == 1) {
		return n == 1, nil
	}
	return false, f.fail("want true or false")
}

// integer parses a whole number of at least least.
func (f field) integer(least int64) (int64, error) {
	n, err := f.whole()
	if err == nil && n < least {
		return 0, f.fail("must be at least " + strconv.FormatInt(least, 10))
	}
	return n, err
}

// whole parses an integer. It may be written as a float or a string, or be a boolean.
func (f field) whole() (int64, error) {
	s := string(f.raw)
	switch {
	case s == "true":
		return 1, nil
	case s == "false":
		return 0, nil
	case s[0] == '"':
		var ok bool
		if s, ok = plainNumber(s); !ok {
			return 0, f.fail("want an integer")
		}
		if i := strings.IndexByte(s, '.'); i >= 0 && strings.Trim(s[i+1:], "0") == "" {
			s = s[:i] // "12.00"
		}
	case strings.ContainsAny(s, ".eE"):
		x, err := f.number()
		switch {
		case err != nil:
			return 0, err
		case x != math.Trunc(x):
			return 0, f.fail("want an integer, this has a fraction")
		case x < -1<<63 || x >= 1<<63:
			return 0, f.fail("is out of the range of integers")
		}
		return int64(x), nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, f.fail("is out of the range of integers")
	case err != nil:
		return 0, f.fail("want an integer")
	}
	return n, nil
}

// literal parses an integer that is written as one. big reports that it does not fit into
// an int64.
func (f field) literal() (n int64, big, ok bool) {
	s := string(f.raw)
	if s == "" || s[0] != '-' && !isDigit(s[0]) || strings.ContainsAny(s, ".eEI") {
		return 0, false, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err != nil, true
}

// number parses a finite number.
func (f field) number() (float64, error) {
	s := string(f.raw)
	switch {
	case s[0] == '"':
		var ok bool
		if s, ok = plainNumber(s); !ok {
			return 0, f.fail("want a number")
		}
	case s == "true":
		return 1, nil
	case s == "false":
		return 0, nil
	case s == "null" || s[0] == '{' || s[0] == '[':
		return 0, f.fail("want a number")
	}
	x, err := strconv.ParseFloat(s, 64)
	if e, ok := err.(*strconv.NumError); ok && e.Err != strconv.ErrRange {
		return 0, f.fail("want a number")
	}
	if math.IsInf(x, 0) || math.IsNaN(x) {
		return 0, f.fail("must be a finite number")
	}
	return x, nil
}

// plainNumber returns the number in a quoted string, without surrounding space and without
// single underscores between its digits.
func plainNumber(quoted string) (string, bool) {
	s, ok := unquote([]byte(quoted))
	s = Trim(s)
	if !ok || s == "" || strings.ContainsAny(s, "xXpP") {
		return "", false
	}
	if strings.Contains(s, "_") {
		for i := range len(s) {
			if s[i] == '_' && (i == 0 || i == len(s)-1 || !isDigit(s[i-1]) || !isDigit(s[i+1])) {
				return "", false
			}
		}
		s = strings.ReplaceAll(s, "_", "")
	}
	return s, true
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// listOf parses a list, whose elements get parses; errors call them elements.
func listOf[T any](f field, elements string, get func(field) (T, error)) ([]T, error) {
	list := []T{}
	m := array(f.raw)
	for m.next() {
		v, err := get(field{f.class, f.name + "[" + strconv.Itoa(len(list)) + "]", m.value})
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	if m.err != nil {
		return nil, f.fail("want a list of " + elements)
	}
	return list, nil
}

// member returns a member of f, with its name.
func (f field) member(name string, raw []byte) field {
	return field{f.class, f.name + "." + name, raw}
}

// env parses an object of strings.
func (f field) env() (map[string]string, error) {
	env := map[string]string{}
	m := object(f.raw)
	for m.next() {
		name := string(m.name)
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return nil, field{f.class, f.name, []byte(strconv.Quote(name))}.fail("is not a name of a variable: leave out = and NUL")
		}
		value, err := f.member(name, m.value).text()
		if err != nil {
			return nil, err
		}
		env[name] = value
	}
	if m.err != nil {
		return nil, f.fail("want an object of strings")
	}
	return env, nil
}
