package api

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
)

// fakeLayers is an engine's layers and an unpacker: the ID of a layer is the hash of its blob.
type fakeLayers struct {
	mu   sync.Mutex
	sum  map[string]string
	fail error // of Unpack, after it has read the blob
}

func (f *fakeLayers) Unpack(ctx context.Context, l images.Layer) (images.Unpacked, error) {
	h := sha256.New()
	n, err := io.Copy(h, l.Blob)
	if err != nil {
		return images.Unpacked{}, err
	}
	if n > l.MaxBytes {
		return images.Unpacked{}, fmt.Errorf("%w: %d bytes", images.ErrRefused, n)
	}
	id := hex.EncodeToString(h.Sum(nil))
	if l.Progress != nil {
		l.Progress(n)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return images.Unpacked{}, f.fail
	}
	f.sum[id] = id
	return images.Unpacked{ID: id, Bytes: n, Entries: 1, Sum: id}, nil
}

func (f *fakeLayers) Sum(_ context.Context, id string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sum[id], nil
}

func (f *fakeLayers) Layers(context.Context) (ids []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.sum {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

func (f *fakeLayers) RemoveLayer(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.sum, id)
	return nil
}

func (f *fakeLayers) MakeLayer(context.Context, string) error            { panic("not used") }
func (f *fakeLayers) PublishLayer(context.Context, string, string) error { panic("not used") }
func (f *fakeLayers) AbandonLayer(context.Context, string) error         { panic("not used") }

// serveImages starts a daemon with a store of images.
func serveImages(t *testing.T, change func(*Options)) (*fixture, *fakeLayers) {
	t.Helper()
	layers := &fakeLayers{sum: map[string]string{}}
	store, err := images.Open(filepath.Join(t.TempDir(), "images"), images.Options{Unpacker: layers, Layers: layers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return serve(t, func(o *Options, _ *policy.Config) {
		o.Images = store
		if change != nil {
			change(o)
		}
	}), layers
}

// rootArchive is the archive of a root file system with one file.
func rootArchive(t *testing.T, content string) *bytes.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "etc/motd", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(b.Bytes())
}

func TestImages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	log, err := audit.Open(path, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	f, layers := serveImages(t, func(o *Options) { o.Audit = log })
	c, ctx := f.as(operatorToken, ""), t.Context()
	sub := f.sessions.Subscribe("acme", 0)
	defer sub.Close()
	img, err := c.ImportImage(ctx, rootArchive(t, "one"), client.ImportOptions{Name: "tools/a:1"})
	if err != nil || img.Name != "tools/a:1" || img.Tenant != "acme" || len(img.Layers) != 1 || !strings.HasPrefix(img.Digest, "sha256:") || img.Platform == "" {
		t.Fatalf("%+v, %v", img, err)
	}
	for _, reference := range []string{"tools/a:1", "docker.io/tools/a:1", img.Digest} {
		if got, err := c.Image(ctx, apitypes.ImageName{Reference: reference}); err != nil || got.Digest != img.Digest {
			t.Errorf("%s: %+v, %v", reference, got, err)
		}
	}
	if list, err := c.Images(ctx); err != nil || len(list) != 1 || list[0].Name != img.Name {
		t.Errorf("%+v, %v", list, err)
	}
	if err := c.VerifyImage(ctx, apitypes.ImageName{Reference: img.Name}); err != nil {
		t.Error(err)
	}
	layers.mu.Lock()
	layers.sum[img.Layers[0]] = "changed"
	layers.mu.Unlock()
	if err := c.VerifyImage(ctx, apitypes.ImageName{Reference: img.Name}); !client.IsCode(err, apitypes.CodeImageDamaged) {
		t.Error(err)
	}
	if err := c.RemoveImage(ctx, apitypes.ImageName{Reference: img.Name}); err != nil {
		t.Error(err)
	}
	if err := c.RemoveImage(ctx, apitypes.ImageName{Reference: img.Name}); !client.IsCode(err, apitypes.CodeImageNotFound) {
		t.Error(err)
	}
	if got, err := f.client().CollectImages(ctx); err != nil || got.Layers != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, want := range []session.EventType{session.EventImagePulled, session.EventImageRemoved} {
		e := <-sub.C
		for e.Type == session.EventImageProgress {
			e = <-sub.C
		}
		if e.Type != want || e.Details["image"] != img.Name {
			t.Errorf("event %+v, want %s", e, want)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := 0 // each change is in the log before it is made
	for _, want := range []string{`"action":"image-import","decision":"allow"`, `"action":"image-import","decision":"done"`,
		`"action":"image-remove","decision":"allow"`, `"action":"image-remove","decision":"done"`, `"action":"image-remove","decision":"failed"`, `"action":"image-gc","decision":"done"`} {
		n := strings.Index(string(text[at:]), want)
		if n < 0 {
			t.Fatalf("no %s behind byte %d of:\n%s", want, at, text)
		}
		at += n
	}
}

// A shared image is for every tenant, and only callers who may act for all tenants change it.
func TestSharedImages(t *testing.T) {
	f, _ := serveImages(t, nil)
	ours, theirs, admin, ctx := f.as(operatorToken, ""), f.as(strangerToken, ""), f.client(), t.Context()
	add := func(c *client.Client, name, content string, shared bool) apitypes.Image {
		img, err := c.ImportImage(ctx, rootArchive(t, content), client.ImportOptions{Name: name, Shared: shared})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return img
	}
	secret, shared, mine := add(ours, "secret", "s", false), add(admin, "tool", "shared", true), add(ours, "tool", "mine", false)
	if shared.Tenant != "" || mine.Tenant != "acme" || shared.Layers[0] == mine.Layers[0] {
		t.Errorf("%+v\n%+v", shared, mine)
	}
	for _, c := range []struct {
		who    *client.Client
		ref    apitypes.ImageName
		digest string
	}{
		{ours, apitypes.ImageName{Reference: "tool"}, mine.Digest},
		{theirs, apitypes.ImageName{Reference: "tool"}, shared.Digest},
		{admin, apitypes.ImageName{Reference: "tool", Shared: true}, shared.Digest},
		{theirs, apitypes.ImageName{Reference: shared.Digest}, shared.Digest},
	} {
		if got, err := c.who.Image(ctx, c.ref); err != nil || got.Digest != c.digest {
			t.Errorf("%+v: %+v, %v", c.ref, got, err)
		}
	}
	// Another tenant's image answers as one that does not exist.
	for _, reference := range []string{"secret", secret.Digest} {
		name := apitypes.ImageName{Reference: reference}
		for what, err := range map[string]error{"get": second(theirs.Image(ctx, name)), "verify": theirs.VerifyImage(ctx, name), "remove": theirs.RemoveImage(ctx, name)} {
			if !client.IsCode(err, apitypes.CodeImageNotFound) || strings.Contains(err.Error(), "acme") {
				t.Errorf("%s %s: %v", what, reference, err)
			}
		}
	}
	if list, err := theirs.Images(ctx); err != nil || len(list) != 1 || list[0].Digest != shared.Digest {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := f.as(scraperToken, AllTenants).Images(ctx); err != nil || len(list) != 1 || list[0].Tenant != "" {
		t.Errorf("of all tenants: %+v, %v", list, err)
	}
	if err := theirs.RemoveImage(ctx, apitypes.ImageName{Reference: "tool"}); !client.IsCode(err, apitypes.CodeImageNotFound) || !strings.Contains(err.Error(), "shared false: must be true") {
		t.Errorf("shared image removed by a tenant: %v", err)
	}
	for what, err := range map[string]error{
		"import": second(theirs.ImportImage(ctx, rootArchive(t, "x"), client.ImportOptions{Name: "x", Shared: true})),
		"pull":   second(theirs.PullImage(ctx, apitypes.ImagePull{Reference: "x", Shared: true}, nil)),
		"get":    second(theirs.Image(ctx, apitypes.ImageName{Reference: "tool", Shared: true})),
		"verify": theirs.VerifyImage(ctx, apitypes.ImageName{Reference: "tool", Shared: true}),
		"remove": theirs.RemoveImage(ctx, apitypes.ImageName{Reference: "tool", Shared: true}),
	} {
		if !client.IsCode(err, apitypes.CodeForbidden) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if p := f.problem("POST", "/v1/images", adminToken, `{"reference":"x"}`, TenantHeader, AllTenants); p.Code != apitypes.CodeInvalid {
		t.Errorf("pull for all tenants: %+v", p)
	}
	if err := admin.RemoveImage(ctx, apitypes.ImageName{Reference: "tool", Shared: true}); err != nil {
		t.Error(err)
	}
}

// The policy is asked with the full reference, and its answer is the client's.
func TestImagePolicy(t *testing.T) {
	var asked []string
	f, _ := serveImages(t, func(o *Options) {
		deny := func(kind string) func(tenant, reference string) error {
			return func(tenant, reference string) error {
				asked = append(asked, kind+tenant+" "+reference)
				return &policy.DeniedError{Field: "image", Value: reference, Rule: "is not allowed"}
			}
		}
		o.AllowImage, o.AllowPull = deny(""), deny("pull ")
	})
	c := f.as(operatorToken, "")
	_, pulled := c.PullImage(t.Context(), apitypes.ImagePull{Reference: "python"}, nil)
	_, imported := c.ImportImage(t.Context(), rootArchive(t, "x"), client.ImportOptions{Name: "r:5000/x"})
	manifest := `[{"Config":"c","RepoTags":["r:5000/y"]}]`
	var saved bytes.Buffer
	w := tar.NewWriter(&saved)
	w.WriteHeader(&tar.Header{Name: "manifest.json", Size: int64(len(manifest)), Mode: 0o644})
	io.WriteString(w, manifest)
	w.Close()
	_, named := c.ImportImage(t.Context(), &saved, client.ImportOptions{}) // by its archive
	if !client.IsCode(pulled, apitypes.CodeDenied) || !client.IsCode(imported, apitypes.CodeDenied) || !client.IsCode(named, apitypes.CodeDenied) {
		t.Errorf("%v, %v, %v", pulled, imported, named)
	}
	if _, err := f.as(adminToken, "acme").PullImage(t.Context(), apitypes.ImagePull{Reference: "python"}, nil); !client.IsCode(err, apitypes.CodeDenied) {
		t.Error(err)
	}
	if want := []string{"pull acme docker.io/library/python:latest", "acme r:5000/x:latest", "acme r:5000/y:latest", "acme docker.io/library/python:latest"}; !slices.Equal(asked, want) {
		t.Errorf("%q", asked)
	}
}

func TestImageBadInput(t *testing.T) {
	f, layers := serveImages(t, func(o *Options) { o.MaxTree = 4096 })
	long := strings.Repeat("x", 600)
	for _, c := range []struct{ method, path, body, code, field string }{
		{"GET", "/v1/images/inspect", "", apitypes.CodeInvalid, "reference"},
		{"GET", "/v1/images/inspect?reference=" + long, "", apitypes.CodeInvalid, "reference"},
		{"GET", "/v1/images/inspect?reference=none", "", apitypes.CodeImageNotFound, ""},
		{"GET", "/v1/images/inspect?reference=a&shared=x", "", apitypes.CodeInvalid, "shared"},
		{"GET", "/v1/images/inspect?name=a", "", apitypes.CodeUnknownField, "name"},
		{"DELETE", "/v1/images?reference=", "", apitypes.CodeInvalid, "reference"},
		{"POST", "/v1/images", `{}`, apitypes.CodeInvalid, "reference"},
		{"POST", "/v1/images", `{"reference":"A B"}`, apitypes.CodeInvalid, "reference"},
		{"POST", "/v1/images", `{"reference":"host"}`, apitypes.CodeInvalid, "reference"},
		{"POST", "/v1/images/import?name=host", "x", apitypes.CodeInvalid, "name"},
		{"POST", "/v1/images", `{"reference":"` + long + `"}`, apitypes.CodeInvalid, "reference"},
		{"POST", "/v1/images/verify", `{"reference":""}`, apitypes.CodeInvalid, "reference"},
		{"POST", "/v1/images/import?name=A%20B", "x", apitypes.CodeInvalid, "name"},
		{"POST", "/v1/images/import?name=a", long, apitypes.CodeImageDamaged, ""},
		{"POST", "/v1/images/import", strings.Repeat("x", 5000), apitypes.CodeBodyTooLarge, ""},
	} {
		p := f.problem(c.method, c.path, adminToken, c.body)
		if p.Code != c.code || c.field != "" && p.Field != c.field {
			t.Errorf("%s %.60s %.40s: %+v", c.method, c.path, c.body, p)
		}
	}
	// A body of unknown length that is too long, and one that is said to be compressed.
	req, err := http.NewRequest("POST", f.base+"/v1/images/import?name=a", io.MultiReader(bytes.NewReader(make([]byte, 5000))))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	for _, want := range []string{apitypes.CodeBodyTooLarge, apitypes.CodeMediaType} {
		resp, err := f.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var p apitypes.Problem
		err = json.NewDecoder(resp.Body).Decode(&p)
		resp.Body.Close()
		if p.Code != want {
			t.Errorf("%+v, %v, want %s", p, err, want)
		}
		req.Body = io.NopCloser(strings.NewReader("x"))
		req.Header.Set("Content-Encoding", "gzip")
	}
	if list, err := f.client().Images(t.Context()); err != nil || len(list)+len(layers.sum) != 0 {
		t.Errorf("%+v, %v, %v", list, err, layers.sum)
	}
}

// A daemon without a store says so, whatever it is asked.
func TestNoImages(t *testing.T) {
	f := serve(t, nil)
	for _, rt := range routes {
		if !strings.HasPrefix(rt.path, imagesPath) {
			continue
		}
		if p := f.problem(rt.method, rt.path, adminToken, map[bool]string{true: "{}"}[rt.method == "POST" && rt.name != "collect-images"]); p.Code != apitypes.CodeImagesDisabled || p.Status != 404 {
			t.Errorf("%s: %+v", rt.name, p)
		}
	}
}

// TestImportProgress: a client that asks for lines hears how far the daemon is with an archive, and gets the image or the
// error as the last line; an archive that is refused before the first step is answered as without lines.
func TestImportProgress(t *testing.T) {
	f, layers := serveImages(t, func(o *Options) { o.MaxTree = 4096 })
	c := f.client()
	var steps []string
	o := client.ImportOptions{Name: "tools/a:1", Progress: func(p apitypes.ImageProgress) { steps = append(steps, fmt.Sprint(p.Step, p.Total)) }}
	archive := rootArchive(t, "one")
	want := fmt.Sprint("unpack", archive.Len())
	img, err := c.ImportImage(t.Context(), archive, o)
	if err != nil || img.Name != "tools/a:1" || len(img.Layers) != 1 || len(steps) < 2 || steps[0] != want || !strings.HasPrefix(steps[len(steps)-1], "done") {
		t.Errorf("%+v, %v, steps %q", img, err, steps)
	}
	layers.mu.Lock()
	layers.fail = errors.New("no room")
	layers.mu.Unlock()
	steps = nil
	if _, err := c.ImportImage(t.Context(), rootArchive(t, "two"), o); !client.IsCode(err, apitypes.CodeInternal) || len(steps) == 0 {
		t.Errorf("%v, steps %q", err, steps)
	}
	steps = nil
	if _, err := c.ImportImage(t.Context(), bytes.NewReader(make([]byte, 5000)), o); !client.IsCode(err, apitypes.CodeBodyTooLarge) || len(steps) > 0 {
		t.Errorf("%v, steps %q", err, steps)
	}
}
