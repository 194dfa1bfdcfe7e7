package langbot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/policy"
)

// fakeStore has images by reference, and no registry.
type fakeStore map[string]images.Image

func (s fakeStore) Pull(context.Context, images.Request) (images.Image, error) {
	return images.Image{}, errors.New("a request at this door pulls")
}

func (s fakeStore) Lease(_, reference, _ string) (images.Image, error) {
	for name, img := range s {
		if name == reference || img.Digest == reference {
			return img, nil
		}
	}
	return images.Image{}, fmt.Errorf("%w %q", images.ErrUnknown, reference)
}

func (s fakeStore) Leased(string) (images.Image, error)  { return images.Image{}, images.ErrUnknown }
func (s fakeStore) Release(string) error                 { return nil }
func (s fakeStore) RetainLeases(func(string) bool) error { return nil }

// TestImages: the names that the operator has mapped mean images of the store, all others the host.
func TestImages(t *testing.T) {
	layers := func(digit string) []string { return []string{strings.Repeat(digit, 64)} }
	b := open(t)
	b.stop()
	all, pull := []string{"host", "*"}, spec.PullAlways
	b.profile = policy.ProfileConfig{Images: &all, Pull: &pull}
	b.images = fakeStore{
		"docker.io/library/python:3.11-slim": {Digest: "sha256:" + strings.Repeat("a", 64), Layers: layers("a")},
		"docker.io/library/python:3.12":      {Digest: "sha256:" + strings.Repeat("b", 64), Layers: layers("b")},
	}
	b.o.ImageNames = map[string]string{"python:3.11-slim": "python:3.11-slim", "node:20-slim": "node:20", "plain": "host"}
	b.start()
	boxOf := func(id string) []string {
		t.Helper()
		physical := must(at.Physical(id))
		for _, v := range b.sessions.List("") {
			if strings.HasSuffix(v.ID, physical) || v.ID == physical {
				return b.host.Box(v.Box).Spec().Layers
			}
		}
		t.Fatalf("no session %s in %+v", id, b.sessions.List(""))
		return nil
	}
	for id, c := range map[string]struct {
		image string
		want  []string
	}{
		"mapped": {"python:3.11-slim", layers("a")}, "default": {protocol.DefaultImage, nil}, "other": {"python:3.12", nil},
		"full name": {"docker.io/library/python:3.11-slim", nil}, "host": {"plain", nil},
	} {
		id = strings.ReplaceAll(id, " ", "-")
		out := b.call("box_create_session", specOf(id, object{"image": c.image}))
		if out["image"] != c.image {
			t.Errorf("%s: the answer has %v", id, out["image"])
		}
		if got := boxOf(id); !slices.Equal(got, c.want) {
			t.Errorf("%s: layers %q", id, got)
		}
	}
	text := b.refused(protocol.BoxValidation, "box_exec", specOf("missing", object{"image": "node:20-slim", "cmd": "true"}))
	if !strings.Contains(text, "docker.io/library/node:20") || !strings.Contains(text, "boxd image") {
		t.Errorf("%q", text)
	}

	// The operator maps the name to another image: sessions keep theirs, new ones have the other.
	b.stop()
	b.o.ImageNames = map[string]string{"python:3.11-slim": "python:3.12"}
	b.start()
	same := specOf("mapped", object{"image": "python:3.11-slim", "cmd": "true"})
	b.call("box_create_session", same)
	b.call("box_exec", same)
	b.host.Kill(b.sessions.List("")[0].Box)
	same["extra_mounts"] = []any{object{"host_path": b.path("shared"), "mount_path": "/data", "mode": "ro"}}
	b.call("box_exec", same)
	b.call("box_create_session", specOf("new", object{"image": "python:3.11-slim"}))
	if old, fresh := boxOf("mapped"), boxOf("new"); !slices.Equal(old, layers("a")) || !slices.Equal(fresh, layers("b")) {
		t.Errorf("layers %q, and of a new session %q", old, fresh)
	}

	b.stop()
	b.allowed = []string{"host"}
	b.start()
	if text := b.refused(protocol.BoxValidation, "box_create_session", specOf("denied", object{"image": "python:3.11-slim"})); !strings.Contains(text, "allowed_images") {
		t.Errorf("%q", text)
	}
}
