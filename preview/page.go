package preview

import (
	"fmt"
	"html/template"
	"net/http"
)

var page = template.Must(template.New("").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
{{if .Reload}}<meta http-equiv="refresh" content="3">
{{end}}<title>{{.Title}}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:36em;margin:15vh auto;padding:0 1em;color-scheme:light dark}</style>
<h1>{{.Title}}</h1>
<p>{{.Text}}</p>
<p><small>boxd, {{.Status}}</small></p>
</html>
`))

// WritePage answers with a page that needs nothing else, or with plain text for a client
// that is no browser. The page of a status that may pass reloads itself.
func WritePage(w http.ResponseWriter, r *http.Request, status int, title, text string) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox")
	h.Set("Content-Type", "text/plain; charset=utf-8")
	passes := status == http.StatusBadGateway || status == http.StatusServiceUnavailable
	if passes {
		h.Set("Retry-After", "2")
	}
	if !wantsHTML(r) {
		w.WriteHeader(status)
		fmt.Fprintf(w, "%s: %s\n", title, text)
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	page.Execute(w, struct {
		Title, Text, Status string
		Reload              bool
	}{title, text, fmt.Sprintf("%d %s", status, http.StatusText(status)), passes && r.Method == http.MethodGet})
}
