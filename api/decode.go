package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// bodyTimeout is how long the body of a JSON request may take to arrive.
const bodyTimeout = 30 * time.Second

// maxPooled is the largest buffer that is kept for later requests.
const maxPooled = 64 << 10

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// decode reads the JSON body of the request into v, a pointer to a struct.
func (c *call) decode(v any) error {
	if err := c.checkContentType(); err != nil {
		return err
	}
	buf := buffers.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= maxPooled {
			buf.Reset()
			buffers.Put(buf)
		}
	}()
	if err := c.readBody(buf); err != nil {
		return err
	}
	return decodeJSON(buf.Bytes(), v)
}

// checkContentType insists on JSON. With another type, a web page could send the request
// without a preflight.
func (c *call) checkContentType() error {
	header := c.r.Header.Get("Content-Type")
	if header == "application/json" { // nearly always
		return nil
	}
	if kind, _, err := mime.ParseMediaType(header); err == nil && kind == "application/json" {
		return nil
	}
	return refuse(apitypes.CodeMediaType, "", "Content-Type %s: must be application/json", spec.Quote(header))
}

// readBody reads the whole body. It lifts the deadline afterwards, which would otherwise
// end the request later.
func (c *call) readBody(buf *bytes.Buffer) error {
	limit := c.s.opt.MaxBody
	if c.r.ContentLength > limit {
		return tooLarge(limit)
	}
	conn := http.NewResponseController(c.w)
	conn.SetReadDeadline(time.Now().Add(bodyTimeout))
	defer conn.SetReadDeadline(time.Time{})
	_, err := buf.ReadFrom(http.MaxBytesReader(c.w, c.r.Body, limit))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return tooLarge(limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse(apitypes.CodeBodyTimeout, "", "the body did not arrive within %s", bodyTimeout)
	case err != nil:
		return refuse(apitypes.CodeMalformed, "", "reading the body: %s", err)
	}
	c.bodyRead = true
	return nil
}

func tooLarge(limit int64) error {
	return refuse(apitypes.CodeBodyTooLarge, "", "the body must have at most %s", spec.FormatSize(limit))
}

// decodeJSON reads exactly one object and refuses fields that v does not have.
func decodeJSON(b []byte, v any) error {
	if !utf8.Valid(b) {
		// encoding/json would replace the bytes by U+FFFD, and another command would run.
		return refuse(apitypes.CodeMalformed, "", "the body must be UTF-8: send other bytes as base64")
	}
	if trimmed := bytes.TrimLeft(b, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return refuse(apitypes.CodeMalformed, "", "the body must be a JSON object")
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return explainJSON(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return refuse(apitypes.CodeMalformed, "", "the body must be a single JSON object, with nothing after it")
	}
	return nil
}

// unitRules say what a value with a unit must look like.
var unitRules = map[reflect.Type]string{
	reflect.TypeFor[apitypes.Size]():     `must be a whole number of bytes or a string such as "512M"`,
	reflect.TypeFor[apitypes.Duration](): `must be a number of seconds or a string such as "1m30s", 0 to 100 years`,
}

// explainJSON translates an error of encoding/json into the terms of the request.
func explainJSON(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	var field *engine.FieldError
	switch {
	case errors.As(err, &syntax):
		return refuse(apitypes.CodeMalformed, "", "not JSON at byte %d: %s", syntax.Offset, syntax)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return refuse(apitypes.CodeMalformed, "", "not JSON: it ends too early")
	case errors.As(err, &kind):
		name := jsonPath(kind.Field)
		if rule := unitRules[kind.Type]; rule != "" {
			return &engine.FieldError{Field: cmp.Or(name, "the body"), Value: kind.Value, Rule: rule}
		}
		return refuse(apitypes.CodeWrongType, name, "%s: must be %s, not %s", cmp.Or(name, "the body"), typeName(kind), kind.Value)
	case errors.As(err, &field):
		return err
	}
	// encoding/json has no error type for this.
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return refuse(apitypes.CodeUnknownField, strings.Trim(name, `"`), "unknown field %s", name)
	}
	// For example, base64 that is not valid.
	return refuse(apitypes.CodeWrongType, "", "%s", strings.TrimPrefix(err.Error(), "json: "))
}

// jsonPath removes from a path the names of embedded structs, which are not in the JSON;
// names that are begin with a lower-case letter.
func jsonPath(path string) string {
	parts := slices.DeleteFunc(strings.Split(path, "."), func(p string) bool { return p != "" && unicode.IsUpper(rune(p[0])) })
	return strings.Join(parts, ".")
}

// typeName returns the JSON name of the expected type.
func typeName(e *json.UnmarshalTypeError) string {
	switch kind := e.Type.Kind().String(); {
	case kind == "string", kind == "map", kind == "struct", kind == "slice", kind == "bool":
		return map[string]string{"string": "a string", "map": "an object", "struct": "an object", "slice": "a list", "bool": "true or false"}[kind]
	case strings.HasPrefix(kind, "uint"):
		return "a whole number that is not negative and fits"
	case strings.HasPrefix(kind, "int"):
		return "a whole number that fits"
	}
	return "a number"
}
