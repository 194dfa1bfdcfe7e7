package api

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// acceptsGzip reports whether the client has asked for a compressed answer.
func acceptsGzip(r *http.Request) bool {
	for _, header := range r.Header["Accept-Encoding"] {
		for part := range strings.SplitSeq(header, ",") {
			name, weight, weighted := strings.Cut(part, ";")
			if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
				continue
			}
			q, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(weight), "q="), 64)
			return !weighted || err == nil && q > 0
		}
	}
	return false
}

// gunzipped returns the content of body, which the client may have compressed. The caller bounds how
// much it reads.
func (c *call) gunzipped(body io.Reader) (io.Reader, error) {
	switch encoding := strings.ToLower(c.r.Header.Get("Content-Encoding")); encoding {
	case "", "identity":
		return body, nil
	case "gzip", "x-gzip":
		return &gzipReader{body: body}, nil
	default:
		return nil, refuse(apitypes.CodeMediaType, "", "Content-Encoding %s: must be gzip, or absent", spec.Quote(encoding))
	}
}

// gzipReader decompresses body. Errors of it are the client's fault.
type gzipReader struct {
	body io.Reader
	z    *gzip.Reader // nil before the first read
	read error        // of body itself

	sent, expanded int64 // bytes
}

// Bounds of what a compressed body expands to: a small body must not keep the daemon busy for long.
// Programs and logs expand 3 to 30 times, and nothing more than about 1,000 times.
const (
	freeExpansion = 64 << 20 // bytes that have no bound but those of the operation
	maxExpansion  = 100      // times the size of the body, beyond that
)

func (g *gzipReader) Read(p []byte) (n int, err error) {
	if g.z == nil {
		g.z, err = gzip.NewReader(gzipBody{g})
	}
	if err == nil {
		n, err = g.z.Read(p)
	}
	if g.expanded += int64(n); g.expanded > freeExpansion+maxExpansion*g.sent {
		return 0, &engine.FieldError{Field: "body", Value: fmt.Sprintf("of %s so far", spec.FormatSize(g.sent)), Rule: fmt.Sprintf("expands more than %d times: send it without compression", maxExpansion)}
	}
	if err == nil || err == io.EOF && g.z != nil || g.read != nil && g.read != io.EOF {
		return n, err
	}
	return n, &engine.FieldError{Field: "body", Value: fmt.Sprintf("(%v)", err), Rule: "must be whole and compressed with gzip, as Content-Encoding says"}
}

// gzipBody notes the error of the body, to tell it from one of the decompression.
type gzipBody struct{ g *gzipReader }

func (b gzipBody) Read(p []byte) (int, error) {
	n, err := b.g.body.Read(p)
	b.g.read = err
	b.g.sent += int64(n)
	return n, err
}
