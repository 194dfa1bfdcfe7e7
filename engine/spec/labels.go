package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of labels and names.
const (
	MaxLabels     = 64
	MaxLabelKey   = 63      // bytes
	MaxLabelValue = 256     // bytes
	MaxLabelBytes = 4 << 10 // of all keys and values together: events carry them
	MaxName       = 128     // bytes
)

// Labels are keys and values that users give to sessions and processes, to find and count them. boxd
// does not interpret them.
type Labels map[string]string

// Validate checks the bounds. A key is 1 to 63 of a-z, A-Z, 0-9, "_", "-", "." and "/", and
// begins with a letter or digit; a value is UTF-8 without control characters. field names the
// labels in the error, a *[FieldError].
func (l Labels) Validate(field string) error {
	if len(l) > MaxLabels {
		return refuse(field, fmt.Sprintf("(%d labels)", len(l)), "must be at most %d labels", MaxLabels)
	}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(l)) {
		value := l[key]
		if !validLabelKey(key) {
			return refuse(field, Quote(key), `a key must be 1 to %d of a-z, A-Z, 0-9, "_", "-", "." and "/", and begin with a letter or digit`, MaxLabelKey)
		}
		if len(value) > MaxLabelValue || !printable(value) {
			return refuse(field+"."+key, Quote(value), "must be at most %d bytes of UTF-8 without control characters", MaxLabelValue)
		}
		size += len(key) + len(value)
	}
	if size > MaxLabelBytes {
		return refuse(field, fmt.Sprintf("(%d bytes)", size), "must be at most %d bytes, all keys and values together", MaxLabelBytes)
	}
	return nil
}

func validLabelKey(key string) bool {
	for i := range len(key) {
		c := key[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || !strings.ContainsRune("_-./", rune(c))) {
			return false
		}
	}
	return key != "" && len(key) <= MaxLabelKey
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// With returns l after changes, of which nil removes a label. It shares nothing with l.
func (l Labels) With(changes map[string]*string) Labels {
	out := make(Labels, len(l)+len(changes))
	maps.Copy(out, l)
	for key, value := range changes {
		if value == nil {
			delete(out, key)
		} else {
			out[key] = *value
		}
	}
	return out
}

// ValidateName checks a name that is shown to people; empty is none.
func ValidateName(name string) error {
	if len(name) > MaxName || !printable(name) || strings.TrimSpace(name) != name {
		return refuse("name", Quote(name), "must be at most %d bytes of UTF-8, without control characters and without blanks at its ends", MaxName)
	}
	return nil
}

// Selector chooses by labels: all of it must match. An empty one matches everything.
type Selector []labelMatch

type labelMatch struct {
	key, value string
	exists     bool // any value
}

// ParseSelector reads terms "key=value" and "key", which matches any value.
func ParseSelector(terms []string) (Selector, error) {
	if len(terms) > MaxLabels {
		return nil, refuse("label", fmt.Sprintf("(%d terms)", len(terms)), "must be at most %d terms", MaxLabels)
	}
	var s Selector
	for _, term := range terms {
		key, value, found := strings.Cut(term, "=")
		if !validLabelKey(key) || len(value) > MaxLabelValue {
			return nil, refuse("label", Quote(term), "must be key=value, or key for any value")
		}
		s = append(s, labelMatch{key, value, !found})
	}
	return s, nil
}

// Matches says whether l has all labels of s.
func (s Selector) Matches(l Labels) bool {
	for _, m := range s {
		if value, ok := l[m.key]; !ok || !m.exists && value != m.value {
			return false
		}
	}
	return true
}

// MetricLabel returns the name that a label with this key has in metrics, whose names have fewer characters.
func MetricLabel(key string) string {
	return "label_" + strings.NewReplacer("-", "_", ".", "_", "/", "_").Replace(key)
}
