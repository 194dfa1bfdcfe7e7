package skills

import (
	"errors"
	"strconv"
	"strings"

	"github.com/boxd/boxd/internal/yamltree"
	"github.com/goccy/go-yaml/ast"
)

// maxFront is the size in bytes of front matter, its last line included. What is longer
// is text.
const maxFront = 16 << 10

// maxNested is how many of the characters that begin a value in a value a head can have
// before it is taken line by line: the parser needs time in the square of their number.
const maxNested = 256

// maxLines is how many lines a head can have before it is taken line by line, for the
// same reason: 16 KiB of empty lines in a block take it a second.
const maxLines = 256

// front is the head of an entry file, and the text behind it.
type front struct {
	Name, DisplayName, Description string

	instructions string
	// others are the lines of the head that are about something else, as they stand.
	others string
}

const fence = "---"

// parseFront never fails: people write these files. A head that is no YAML is taken line
// by line, and one that is missing, or does not end, is none.
func parseFront(text string) front {
	text = strings.TrimPrefix(text, "\ufeff")
	text = strings.ReplaceAll(text, "\r\n", "\n")
	text = strings.ReplaceAll(text, "\r", "\n")
	head, rest, ok := cutFront(text)
	if !ok {
		return front{instructions: text}
	}
	f := front{instructions: strings.TrimLeft(rest, "\n")}
	if isSlow(head) || !f.yaml(head) {
		f.lines(head)
	}
	return f
}

// cutFront divides text at the lines "---".
func cutFront(text string) (head, rest string, ok bool) {
	first, body, ok := strings.Cut(text, "\n")
	if !ok || strings.TrimRight(first, " \t") != fence {
		return "", "", false
	}
	for at := 0; at <= maxFront-len(first) && at < len(body); {
		line, _, more := strings.Cut(body[at:], "\n")
		if strings.TrimRight(line, " \t") == fence {
			rest = body[at+len(line):]
			return body[:at], strings.TrimPrefix(rest, "\n"), true
		}
		at += len(line) + 1
		if !more {
			break
		}
	}
	return "", "", false
}

// isSlow says whether the parser may need long for a head.
func isSlow(head string) bool {
	if strings.Count(head, "\n") > maxLines {
		return true
	}
	n := strings.Count(head, "[") + strings.Count(head, "{")
	for line := range strings.SplitSeq(head, "\n") {
		n = max(n, strings.Count(line, "- "), strings.Count(line, "? "))
	}
	return n > maxNested
}

// field returns where the value of a key goes, nil if it is not ours.
func (f *front) field(key string) *string {
	switch key {
	case "name":
		return &f.Name
	case "display_name":
		return &f.DisplayName
	case "description":
		return &f.Description
	}
	return nil
}

// yaml reads a head that is a YAML mapping. Nothing is decoded: values of other keys,
// aliases in particular, are never looked at.
func (f *front) yaml(head string) (ok bool) {
	err := yamltree.Read([]byte(head), func(file *ast.File) error {
		if len(file.Docs) != 1 {
			return errNoMapping
		}
		values := entries(file.Docs[0].Body)
		if values == nil {
			return errNoMapping
		}
		lines := strings.SplitAfter(head, "\n")
		keep := make([]bool, len(lines))
		for i := range keep {
			keep[i] = true
		}
		for i, v := range values {
			to := f.field(key(v))
			if to == nil {
				continue
			}
			*to = strip(scalar(v.Value))
			end := len(lines)
			if i+1 < len(values) {
				end = line(values[i+1])
			}
			for l := line(v); l < end; l++ {
				keep[l] = false
			}
		}
		var others strings.Builder
		for i, l := range lines {
			if keep[i] {
				others.WriteString(l)
			}
		}
		f.others = others.String()
		return nil
	})
	return err == nil
}

var errNoMapping = errors.New("no mapping")

// entries returns those of a mapping with one entry per line or more, nil if node is
// something else.
func entries(node ast.Node) []*ast.MappingValueNode {
	switch n := node.(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

func key(v *ast.MappingValueNode) string {
	return strings.Trim(v.Key.GetToken().Value, `"'`)
}

// line is the index of the line that an entry begins in.
func line(v *ast.MappingValueNode) int { return v.Key.GetToken().Position.Line - 1 }

// scalar is a value as text: empty for what is none, or for nothing.
func scalar(node ast.Node) string {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value
	case *ast.LiteralNode:
		return n.Value.Value
	case *ast.TagNode:
		return scalar(n.Value)
	case *ast.AnchorNode:
		return scalar(n.Value)
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value
	}
	return ""
}

// lines reads "key: value" at the beginning of lines, for heads that are no YAML, such as
// those with a colon in a sentence. Nothing else of them is kept.
func (f *front) lines(head string) {
	for l := range strings.SplitSeq(head, "\n") {
		k, v, ok := strings.Cut(l, ":")
		to := f.field(strings.TrimRight(k, " \t"))
		if !ok || to == nil {
			continue
		}
		v = strip(v)
		if q, err := strconv.Unquote(v); err == nil {
			v = q
		} else if n := len(v); n >= 2 && v[0] == '\'' && v[n-1] == '\'' {
			v = v[1 : n-1]
		}
		*to = v
	}
}

// String writes an entry file that reads as f does.
func (f front) String() string {
	var b strings.Builder
	b.WriteString(fence + "\n")
	for _, k := range []string{"name", "display_name", "description"} {
		if v := *f.field(k); v != "" {
			b.WriteString(k + ": " + yamlString(v) + "\n")
		}
	}
	b.WriteString(f.others)
	b.WriteString(fence + "\n\n")
	b.WriteString(f.instructions)
	return b.String()
}

// yamlString writes s as a YAML value: as it is if that can be nothing but a string in
// any version of YAML, else quoted. The escapes of Go are all escapes of YAML.
func yamlString(s string) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if isPlain(s) {
		return s
	}
	return strconv.Quote(s)
}

func isPlain(s string) bool {
	for i, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || !(r >= '0' && r <= '9' || r == '-' || r == '_')) {
			return false
		}
	}
	switch strings.ToLower(s) {
	case "", "y", "n", "yes", "no", "true", "false", "on", "off", "null":
		return false
	}
	return true
}
