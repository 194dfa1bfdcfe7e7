package api

import (
	"cmp"
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/files"
	"github.com/boxd/boxd/internal/budget"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/session"
)

// Bounds of the content of outputs that the daemon holds at once, from its collection until the
// client has accepted the answer. In an answer the content takes up to four times as much memory.
const (
	maxOutputBytes    = 128 << 20 // of all tenants
	tenantOutputBytes = 32 << 20  // of one tenant
	// outputPatience is how long a command that has ended waits for others.
	outputPatience = 10 * time.Second
)

// takeOutputs counts n bytes of content for tenant. It waits until there is room for them, at most for
// outputPatience.
func takeOutputs(ctx context.Context, b *budget.Budget, tenant string, n int64) error {
	ctx, cancel := context.WithTimeout(ctx, outputPatience)
	defer cancel()
	ok, own := b.Take(ctx, tenant, n)
	if ok {
		return nil
	}
	whose, limit := "other requests", int64(maxOutputBytes)
	if own {
		whose, limit = "the tenant's other requests", tenantOutputBytes
	}
	return fmt.Errorf("outputs of %s take all of the %s that answers may hold at once: get the files with GET …/files/content, or run fewer commands with outputs at once", whose, spec.FormatSize(limit))
}

// outputs are the files that a command has made.
type outputs struct {
	files     []apitypes.OutputFile
	truncated bool
	failure   string

	budget *budget.Budget
	tenant string
	held   int64 // bytes of content
}

// release is called when the answer has been sent.
func (o *outputs) release() {
	if o.held > 0 {
		o.budget.Give(o.tenant, o.held)
		o.held = 0
	}
}

// collectOutputs has e collect the files that patterns name, once the command has ended. A failure then is
// reported in the result, because the command has run. The caller releases the outputs.
func (c *call) collectOutputs(tenant string, patterns []string, e *session.Exec) (*outputs, error) {
	o := &outputs{budget: c.s.outputs, tenant: tenant}
	if len(patterns) == 0 {
		return o, nil
	}
	var since time.Time
	mark := func() (err error) { since, err = linux.FileTime(); return err }
	if e.Code == nil {
		if err := mark(); err != nil {
			return nil, err
		}
	} else { // the files of the request are no outputs, unless the program changes them
		write := e.Code.Write
		e.Code.Write = func(ctx context.Context, box engine.LiveBox, name string) error {
			if err := write(ctx, box, name); err != nil {
				return err
			}
			return mark()
		}
	}
	user, dir := e.User, cmp.Or(e.Dir, ".")
	e.Collect = func(ctx context.Context, box engine.LiveBox) {
		if err := takeOutputs(ctx, o.budget, tenant, files.MadeBytes); err != nil {
			o.failure = oneline.Error(err)
			return
		}
		made, truncated, err := files.Made(ctx, box, files.Options{User: user}, dir, patterns, since)
		if err != nil {
			o.failure = oneline.Error(err)
		}
		o.truncated = truncated
		for _, m := range made {
			f := apitypes.OutputFile{Path: m.Path, Size: m.Size, Mode: m.Mode, ModTime: m.ModTime, Omitted: m.Omitted}
			if !utf8.ValidString(m.Path) {
				f.RawPath = []byte(m.Path)
			}
			f.Content, f.ContentBase64 = textOrBytes(m.Content)
			o.files, o.held = append(o.files, f), o.held+int64(len(m.Content))
		}
		o.budget.Give(tenant, files.MadeBytes-o.held)
	}
	return o, nil
}
