package api

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/ui"
)

// page serves the operator's page and its files. They are the same for everybody and say nothing about
// this daemon, so they need no credentials.
func (c *call) page() error {
	name := cmp.Or(c.r.PathValue("file"), ui.Index)
	f := ui.Open(name)
	if f == nil {
		return refuse(apitypes.CodeNoRoute, "", "the page has no file %s", spec.Quote(name))
	}
	h := c.w.Header()
	h.Set("Content-Security-Policy", ui.Policy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache") // ask each time whether it has changed
	h.Set("Vary", "Accept-Encoding")
	body, etag := f.Body, f.ETag
	if acceptsGzip(c.r) {
		body, etag = f.Zipped, strings.TrimSuffix(f.ETag, `"`)+`-gz"`
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("ETag", etag)
	for known := range strings.SplitSeq(c.r.Header.Get("If-None-Match"), ",") {
		if known = strings.TrimPrefix(strings.TrimSpace(known), "W/"); known == etag || known == "*" {
			h.Del("Content-Encoding")
			c.w.WriteHeader(http.StatusNotModified)
			return nil
		}
	}
	h.Set("Content-Type", f.Type)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(http.StatusOK)
	c.w.Write(body) // fails only if the client has gone
	return nil
}
