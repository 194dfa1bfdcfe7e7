package skills

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd/boxd/internal/yamltree"
	"github.com/goccy/go-yaml/ast"
)

// maxFront is the largest size of front matter in bytes, including its last line. A longer one
// counts as text.
const maxFront = 16 << 10

// Front matter beyond these bounds is read line by line instead of as YAML, because the parser
// needs quadratic time: maxNested bounds the characters that begin a nested value, maxLines the
// lines. 16 KiB of empty lines in a block take the parser a second.
const (
	maxNested = 256
	maxLines  = 256
)

// front is the front matter of an entry file, and the text after it.
type front struct {
	Name, DisplayName, Description string

	instructions string
	// others are the remaining lines of the front matter, unchanged.
	others string
}

const fence = "---"

// parseFront never fails, because people write these files. Front matter that is not YAML is read
// line by line. If it has no end, all of the file is text.
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

// cutFront splits text at its lines "---".
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

// isSlow reports whether the YAML parser may take long to read head.
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

// field returns where the value of a key belongs, nil for other keys.
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

// yaml reads a head that is a YAML mapping. It decodes nothing, and never looks at the values of
// other keys, which may contain aliases.
func (f *front) yaml(head string) (ok bool) {
	err := yamltree.Read([]byte(head), func(file *ast.File) error {
		var values []*ast.MappingValueNode
		if len(file.Docs) == 1 {
			switch n := file.Docs[0].Body.(type) {
			case *ast.MappingNode:
				values = n.Values
			case *ast.MappingValueNode: // the only one
				values = []*ast.MappingValueNode{n}
			}
		}
		if values == nil {
			return errors.New("no mapping")
		}
		lines := strings.SplitAfter(head, "\n")
		end := len(lines) // where the lines of the entry end
		for _, v := range slices.Backward(values) {
			key := v.Key.GetToken()
			begin := key.Position.Line - 1
			if to := f.field(strings.Trim(key.Value, `"'`)); to != nil {
				*to = strings.TrimSpace(scalar(v.Value))
				lines = slices.Delete(lines, begin, max(begin, end))
			}
			end = begin
		}
		f.others = strings.Join(lines, "")
		return nil
	})
	return err == nil
}

// scalar returns a value as text, "" for null, lists and mappings.
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

// lines reads "key: value" from the beginning of lines, for heads that are not YAML, such as those
// with a colon in a sentence. It drops everything else.
func (f *front) lines(head string) {
	for l := range strings.SplitSeq(head, "\n") {
		k, v, ok := strings.Cut(l, ":")
		to := f.field(strings.TrimRight(k, " \t"))
		if !ok || to == nil {
			continue
		}
		v = strings.TrimSpace(v)
		if q, err := strconv.Unquote(v); err == nil {
			v = q
		} else if n := len(v); n >= 2 && v[0] == '\'' && v[n-1] == '\'' {
			v = v[1 : n-1]
		}
		*to = v
	}
}

// String returns an entry file that parses as f.
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

// yamlString returns s as a YAML value: unquoted if every version of YAML reads it as a string, else
// quoted. All escapes of Go are escapes of YAML, too.
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
