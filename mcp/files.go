package mcp

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bounds of the content of one call.
const (
	defaultRead = 64 << 10
	maxRead     = 1 << 20
	maxImage    = 3 << 20 // a third more in base64, and clients take about 5 MB
	maxEdit     = 4 << 20
	maxResource = 4 << 20 // read_file reads parts of larger files
)

// Bounds of the content of resources that a door holds at once, until its clients have accepted the answers. An
// answer takes up to six times as much memory.
const (
	heldResources   = 32 << 20 // of all tenants
	tenantResources = 8 << 20  // of one tenant
	minHeld         = 64 << 10 // a file of /proc says that it is empty
	// resourcePatience is how long a request waits for others.
	resourcePatience = 10 * time.Second
)

// apiWrite makes the directories of a file.
var apiWrite = client.WriteOptions{Parents: true}

type readArgs struct {
	inSession
	Path   string `json:"path" jsonschema:"Path in the box, absolute or relative to the working directory."`
	Offset int64  `json:"offset,omitempty" jsonschema:"Byte at which to begin."`
	Limit  int64  `json:"limit,omitempty" jsonschema:"Bytes at most; 0: 65536. The most is 1048576."`
}

type readResult struct {
	Path       string `json:"path"`
	Size       int64  `json:"size" jsonschema:"Bytes of the whole file."`
	Text       string `json:"text,omitempty" jsonschema:"The part that was asked for, if it is text."`
	Offset     int64  `json:"offset,omitempty"`
	NextOffset int64  `json:"next_offset,omitempty" jsonschema:"Where the next call should continue; absent: the file ends here."`
	Type       string `json:"type,omitempty" jsonschema:"Media type of a file that is no text."`
}

type writeArgs struct {
	inSession
	Path       string `json:"path" jsonschema:"Path in the box, absolute or relative to the working directory. Missing directories are made."`
	Content    string `json:"content,omitempty" jsonschema:"The content, as text."`
	Base64     string `json:"content_base64,omitempty" jsonschema:"The content in base64, instead of content."`
	Append     bool   `json:"append,omitempty" jsonschema:"Add to the end of the file instead of replacing it."`
	Executable bool   `json:"executable,omitempty" jsonschema:"Make it a program."`
}

type editArgs struct {
	inSession
	Path string `json:"path" jsonschema:"Path in the box, absolute or relative to the working directory."`
	Old  string `json:"old" jsonschema:"Text of the file to replace, exactly as it stands there. It must occur once."`
	New  string `json:"new" jsonschema:"Text to put in its place."`
	All  bool   `json:"all,omitempty" jsonschema:"Replace every occurrence."`
}

type writeResult struct {
	Path         string `json:"path"`
	Size         int64  `json:"size" jsonschema:"Bytes of the file now."`
	Replacements int    `json:"replacements,omitempty"`
}

type listArgs struct {
	inSession
	Path string `json:"path,omitempty" jsonschema:"Directory in the box; empty: the working directory."`
}

type listResult struct {
	Path      string      `json:"path"`
	Files     []listEntry `json:"files"`
	Truncated bool        `json:"truncated,omitempty" jsonschema:"There are more than are here."`
}

type listEntry struct {
	Name   string `json:"name"`
	Type   string `json:"type" jsonschema:"file, dir, symlink, fifo, socket or device."`
	Size   int64  `json:"size"`
	Target string `json:"target,omitempty" jsonschema:"What a symlink points to."`
}

func (t *tools) addFiles() {
	add(t, "read_file", "Read a file", "Read a file in the box: a part of a text file, or a PNG, JPEG, GIF or WebP image as an image.", kind{readOnly: true, idempotent: true}, (*box).readFile)
	add(t, "write_file", "Write a file", "Replace a file in the box, or make it, or add to it.", kind{destructive: true}, (*box).writeFile)
	add(t, "edit_file", "Edit a file", "Replace a piece of text in a file in the box by another.", kind{destructive: true}, (*box).editFile)
	add(t, "list_files", "List a directory", "List the entries of a directory in the box.", kind{readOnly: true, idempotent: true}, (*box).listFiles)
	t.server.AddResourceTemplate(&sdk.ResourceTemplate{Name: "file", Title: "A file in the box", URITemplate: "boxd://box{+path}", Description: "Results of tools link to files in this form."},
		func(ctx context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			path, ok := strings.CutPrefix(r.Params.URI, "boxd://box/")
			path, err := url.PathUnescape("/" + path)
			if !ok || err != nil {
				return nil, sdk.ResourceNotFoundError(r.Params.URI)
			}
			b, ctx, closeBox, err := t.open(ctx, r.Session, r.Extra, r.ClientInfo(), "")
			if err != nil {
				return nil, toolError(err)
			}
			defer closeBox()
			content, err := b.readResource(ctx, path)
			if client.IsCode(err, apitypes.CodeNoFile) {
				return nil, sdk.ResourceNotFoundError(r.Params.URI)
			} else if err != nil {
				return nil, toolError(err)
			}
			one := &sdk.ResourceContents{URI: r.Params.URI}
			if utf8.Valid(content) {
				one.Text, one.MIMEType = string(content), "text/plain"
			} else {
				one.Blob, one.MIMEType = content, http.DetectContentType(content)
			}
			return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{one}}, nil
		})
}

// readResource returns the whole content of a file, of at most maxResource bytes.
func (b *box) readResource(ctx context.Context, path string) ([]byte, error) {
	info, err := b.c.StatFile(ctx, b.session.ID, path)
	if err != nil {
		return nil, err
	}
	tooLarge := func(size int64) error { // a part would pass for the whole
		return fmt.Errorf("%s: has %d bytes, and a resource at most %d: read_file reads parts of it", path, size, maxResource)
	}
	if info.Size > maxResource {
		return nil, tooLarge(info.Size)
	}
	most := max(info.Size, minHeld)
	if b.hold != nil {
		if err := b.hold(ctx, most); err != nil {
			return nil, err
		}
	}
	r, err := b.c.ReadFile(ctx, b.session.ID, path, 0, most+1)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	switch {
	case err != nil:
		return nil, err
	case len(content) > maxResource:
		return nil, tooLarge(int64(len(content)))
	case int64(len(content)) > most:
		return nil, fmt.Errorf("%s: has grown beyond %d bytes while it was read: retry", path, most)
	}
	return content, nil
}

// fileURI is the URI of a file in the box.
func fileURI(path string) string { return (&url.URL{Scheme: "boxd", Host: "box", Path: path}).String() }

// read returns up to limit bytes of a file from offset on.
func (b *box) read(ctx context.Context, path string, offset, limit int64) (apitypes.FileInfo, []byte, error) {
	info, err := b.c.StatFile(ctx, b.session.ID, path)
	if err != nil {
		return info, nil, err
	}
	r, err := b.c.ReadFile(ctx, b.session.ID, path, offset, limit)
	if err != nil {
		return info, nil, err
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	return info, content, err
}

func (b *box) readFile(ctx context.Context, in readArgs) (*sdk.CallToolResult, *readResult, error) {
	limit := in.Limit
	switch {
	case in.Offset < 0:
		return nil, nil, fmt.Errorf("offset %d: must be 0 or more", in.Offset)
	case limit < 0 || limit > maxRead:
		return nil, nil, fmt.Errorf("limit %d: must be 0 to %d", limit, maxRead)
	case limit == 0:
		limit = defaultRead
	}
	info, content, err := b.read(ctx, in.Path, in.Offset, limit)
	if err != nil {
		return nil, nil, err
	}
	out := &readResult{Path: in.Path, Size: info.Size, Offset: in.Offset}
	if mime := imageType(content); mime != "" && in.Offset == 0 {
		out.Type = mime
		if info.Size > maxImage {
			return textResult(fmt.Sprintf("%s: an image (%s) of %d bytes, which is too large to be shown: the most is %d", in.Path, mime, info.Size, maxImage)), out, nil
		}
		if int64(len(content)) < info.Size {
			if _, content, err = b.read(ctx, in.Path, 0, maxImage); err != nil {
				return nil, nil, err
			}
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.ImageContent{Data: content, MIMEType: mime}}}, out, nil
	}
	content = wholeCharacters(content)
	end := in.Offset + int64(len(content))
	if end < info.Size {
		out.NextOffset = end
	}
	if !utf8.Valid(content) || bytes.IndexByte(content, 0) >= 0 {
		out.Type, out.NextOffset = http.DetectContentType(content), 0
		return textResult(fmt.Sprintf("%s: %d bytes that are no text (%s): read it with a program", in.Path, info.Size, out.Type)), out, nil
	}
	out.Text = string(content)
	text := out.Text
	if out.NextOffset > 0 {
		text += fmt.Sprintf("\n[… %d of %d bytes; continue with offset %d …]", len(content), info.Size, out.NextOffset)
	}
	return textResult(text), out, nil
}

// wholeCharacters returns b without the beginning of a character at its end, so that a part of a text
// is text, too.
func wholeCharacters(b []byte) []byte {
	for n := 1; n < utf8.UTFMax && n < len(b); n++ {
		if last := b[len(b)-n:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				return b[:len(b)-n]
			}
			break
		}
	}
	return b
}

// imageType returns the media type of an image that clients show, or "".
func imageType(b []byte) string {
	mime := http.DetectContentType(b)
	if slices.Contains([]string{"image/png", "image/jpeg", "image/gif", "image/webp"}, mime) {
		return mime
	}
	return ""
}

func (b *box) writeFile(ctx context.Context, in writeArgs) (*sdk.CallToolResult, *writeResult, error) {
	content := []byte(in.Content)
	if in.Base64 != "" {
		var err error
		if content, err = base64.StdEncoding.DecodeString(in.Base64); err != nil || in.Content != "" {
			return nil, nil, errors.New("content_base64: must be base64, and absent if content is given")
		}
	}
	o := client.WriteOptions{Append: in.Append, Parents: true}
	if in.Executable {
		o.Mode = "0755"
	}
	info, err := b.c.WriteFile(ctx, b.session.ID, in.Path, bytes.NewReader(content), o)
	if err != nil {
		return nil, nil, err
	}
	return textResult(fmt.Sprintf("%s: %d bytes written, it has %d now", in.Path, len(content), info.Size)), &writeResult{Path: in.Path, Size: info.Size}, nil
}

func (b *box) editFile(ctx context.Context, in editArgs) (*sdk.CallToolResult, *writeResult, error) {
	if in.Old == "" || in.Old == in.New {
		return nil, nil, errors.New("old: must not be empty, and differ from new")
	}
	info, content, err := b.read(ctx, in.Path, 0, maxEdit+1)
	switch {
	case err != nil:
		return nil, nil, err
	case len(content) > maxEdit:
		return nil, nil, fmt.Errorf("%s: has %d bytes, and at most %d can be edited: use a program", in.Path, info.Size, maxEdit)
	}
	n := bytes.Count(content, []byte(in.Old))
	switch {
	case n == 0:
		return nil, nil, fmt.Errorf("%s: does not contain old: read the file, and give the text exactly as it stands there", in.Path)
	case n > 1 && !in.All:
		return nil, nil, fmt.Errorf("%s: contains old %d times: give more of the text around it, or set all", in.Path, n)
	}
	if size := int64(len(content)) + int64(n)*int64(len(in.New)-len(in.Old)); size > maxEdit {
		return nil, nil, fmt.Errorf("%s: would have %d bytes, and at most %d can be edited: use a program", in.Path, size, maxEdit)
	}
	content = bytes.ReplaceAll(content, []byte(in.Old), []byte(in.New))
	if info, err = b.c.WriteFile(ctx, b.session.ID, in.Path, bytes.NewReader(content), client.WriteOptions{}); err != nil {
		return nil, nil, err
	}
	return textResult(fmt.Sprintf("%s: %d replaced, it has %d bytes now", in.Path, n, info.Size)), &writeResult{Path: in.Path, Size: info.Size, Replacements: n}, nil
}

func (b *box) listFiles(ctx context.Context, in listArgs) (*sdk.CallToolResult, *listResult, error) {
	if in.Path == "" {
		in.Path = "."
	}
	list, err := b.c.ListFiles(ctx, b.session.ID, in.Path)
	if err != nil {
		return nil, nil, err
	}
	out := &listResult{Path: in.Path, Files: []listEntry{}, Truncated: list.Truncated}
	var text strings.Builder
	for i, f := range list.Files {
		if i == maxListed {
			out.Truncated = true
			break
		}
		out.Files = append(out.Files, listEntry{f.Name, f.Type, f.Size, f.Target})
		switch f.Type {
		case "dir":
			fmt.Fprintf(&text, "%s/\n", f.Name)
		case "symlink":
			fmt.Fprintf(&text, "%s -> %s\n", f.Name, f.Target)
		default:
			fmt.Fprintf(&text, "%s (%d bytes)\n", f.Name, f.Size)
		}
	}
	switch {
	case out.Truncated:
		text.WriteString("… and more")
	case len(out.Files) == 0:
		text.WriteString("the directory is empty")
	}
	return textResult(text.String()), out, nil
}

// maxListed is how many entries of a directory a model is shown.
const maxListed = 500

// sortByTime sorts files, the oldest first.
func sortByTime(list []apitypes.FileInfo) {
	slices.SortFunc(list, func(a, b apitypes.FileInfo) int { return a.ModTime.Compare(b.ModTime) })
}
