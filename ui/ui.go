// Package ui has the operator's page as "npm run build" makes it of src: a few static files, the same
// for everybody. What the page shows comes from the API; package api serves both.
package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"path"
	"sync"
)

//go:embed dist
var dist embed.FS

// Policy is the Content-Security-Policy of the page: its own files and the API of its origin, nothing
// inline, no frame around it, and no text of a session that becomes markup.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Index is the name of the page itself.
const Index = "index.html"

// File is a file of the page. Its fields must not be changed.
type File struct {
	Type   string // media type
	ETag   string // with quotes; another one for each content
	Body   []byte
	Zipped []byte // Body in gzip
}

var types = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
	".txt": "text/plain; charset=utf-8",
}

// files are compressed at the first request, so the start of the program does not pay for them.
var files = sync.OnceValue(func() map[string]*File {
	all := map[string]*File{}
	entries, err := dist.ReadDir("dist")
	if err != nil {
		panic(err) // it is part of the program
	}
	for _, e := range entries {
		body, err := dist.ReadFile("dist/" + e.Name())
		if err != nil {
			panic(err)
		}
		var zipped bytes.Buffer
		w, _ := gzip.NewWriterLevel(&zipped, gzip.BestCompression) // the level exists
		w.Write(body)                                              // a buffer takes everything
		w.Close()
		sum := sha256.Sum256(body)
		all[e.Name()] = &File{Type: types[path.Ext(e.Name())], ETag: fmt.Sprintf("%q", base64.RawURLEncoding.EncodeToString(sum[:12])), Body: body, Zipped: zipped.Bytes()}
	}
	return all
})

// Open returns the file of that name; nil: there is none.
func Open(name string) *File { return files()[name] }
