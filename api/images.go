package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/session"
)

// onImages is the handler of a route about images, of a daemon that keeps some.
func onImages(handle func(*call) error) func(*call) error {
	return func(c *call) error {
		if c.s.opt.Images == nil {
			return refuse(apitypes.CodeImagesDisabled, "", "this daemon keeps no images: start its launcher with a data directory (boxd-init --data-dir)")
		}
		return handle(c)
	}
}

// imageOwner returns the tenant whose reference the request means: images.Shared if shared is set, which only callers
// who may act for all tenants may say.
func (c *call) imageOwner(shared bool) (string, error) {
	if !shared {
		return c.oneTenant()
	}
	if !c.who.all() {
		return "", refuse(apitypes.CodeForbidden, "shared", "shared: only administrators and the tenant %q have shared images", AllTenants)
	}
	return images.Shared, nil
}

// maxReference bounds the name of an image, as it does in engine.Spec.
const maxReference = 512

// checkReference bounds the name of an image that the store has. The store knows the other rules, and those of
// digests.
func checkReference(reference string) error {
	if reference == "" || len(reference) > maxReference {
		return &engine.FieldError{Field: "reference", Value: spec.Quote(reference), Rule: fmt.Sprintf("must have 1 to %d bytes, such as python:3.12", maxReference)}
	}
	return nil
}

// imageName returns the image that the query names, and whose it is.
func (c *call) imageName() (tenant, reference string, err error) {
	shared, err := c.queryBool("shared")
	if err != nil {
		return "", "", err
	}
	if tenant, err = c.imageOwner(shared); err != nil {
		return "", "", err
	}
	return tenant, c.query("reference"), checkReference(c.query("reference"))
}

// listImages lists the images that the tenant can use; for all tenants, the shared ones.
func (c *call) listImages() error {
	found, err := c.s.opt.Images.List(c.listTenant())
	if err != nil {
		return err
	}
	list := apitypes.ImageList{Images: make([]apitypes.Image, len(found))}
	for i, img := range found {
		list.Images[i] = imageOf(img)
	}
	return c.reply(http.StatusOK, list)
}

func (c *call) getImage() error {
	tenant, reference, err := c.imageName()
	if err != nil {
		return err
	}
	img, err := c.s.opt.Images.Get(tenant, reference)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, imageOf(img))
}

func (c *call) pullImage() error {
	var q apitypes.ImagePull
	if err := c.decode(&q); err != nil {
		return err
	}
	tenant, err := c.imageOwner(q.Shared)
	if err != nil {
		return err
	}
	ref, err := spec.CheckReference("reference", q.Reference)
	if err != nil {
		return err
	}
	ctx, cancel := c.untilGone()
	defer cancel()
	r := images.Request{Reference: q.Reference, Tenant: tenant, Platform: q.Platform, Always: q.Always}
	return c.answerImage(imagePull, ref.String(), &r, cancel, func() (images.Image, error) { return c.s.opt.Images.Pull(ctx, r) })
}

// answerImage is addImage and answers: with the image, or with a line for each step if the client accepts lines. cancel
// ends add when the client accepts no more. add has read the body before it tells the first step.
func (c *call) answerImage(action, full string, r *images.Request, cancel context.CancelFunc, add func() (images.Image, error)) error {
	if !accepts(c.r, ndjson) {
		img, err := c.addImage(action, full, r, nil, add)
		if err != nil {
			return err
		}
		return c.reply(http.StatusOK, img)
	}
	out := &lineWriter{call: c, cancel: cancel}
	img, err := c.addImage(action, full, r, func(p images.Progress) {
		_ = out.send(&apitypes.ImageEvent{Progress: (*apitypes.ImageProgress)(&p)}) // a failure calls cancel
	}, add)
	switch {
	case err == nil:
		return out.send(&apitypes.ImageEvent{Image: &img})
	case c.w.started():
		p := c.problem(err)
		return out.send(&apitypes.ImageEvent{Error: &p})
	}
	return err
}

// importImage reads an archive from the body. The store refuses what it does not know.
func (c *call) importImage() error {
	shared, err := c.queryBool("shared")
	if err != nil {
		return err
	}
	tenant, err := c.imageOwner(shared)
	if err != nil {
		return err
	}
	r, full := images.Request{Reference: c.query("name"), Tenant: tenant, Platform: c.query("platform")}, ""
	if r.Reference != "" { // otherwise the archive has one
		ref, err := spec.CheckReference("name", r.Reference)
		if err != nil {
			return err
		}
		full = ref.String()
	}
	if encoding := c.r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return refuse(apitypes.CodeMediaType, "", "Content-Encoding %s: must be absent: an archive may itself be compressed", spec.Quote(encoding))
	}
	if c.r.ContentLength > c.s.opt.MaxTree {
		return tooLarge(c.s.opt.MaxTree)
	}
	ctx, cancel := c.untilGone()
	defer cancel()
	body := &bodyReader{conn: http.NewResponseController(c.w), r: c.r.Body}
	defer body.close()
	if full == "" && c.s.opt.AllowImage != nil {
		r.Allow = func(named string) error { return c.s.opt.AllowImage(tenant, named) }
	}
	return c.answerImage("image-import", full, &r, cancel, func() (images.Image, error) {
		img, err := c.s.opt.Images.ImportStream(ctx, &boundedReader{r: body, left: c.s.opt.MaxTree, most: c.s.opt.MaxTree}, r)
		c.bodyRead = err == nil
		return img, err
	})
}

// boundedReader fails after most bytes.
type boundedReader struct {
	r          io.Reader
	left, most int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, tooLarge(b.most)
	}
	return n, err
}

// progressEvents is the least time between two events about the progress of a pull: subscribers need no more, and
// only the latest events are kept.
const progressEvents = time.Second

const imagePull = "image-pull" // the action

// addImage pulls or imports an image, and records that. full is the full reference, empty if the archive has it.
// progress, if not nil, is told each step.
func (c *call) addImage(action, full string, r *images.Request, progress func(images.Progress), add func() (images.Image, error)) (apitypes.Image, error) {
	var last time.Time
	r.Progress = func(p images.Progress) {
		if progress != nil {
			progress(p)
		}
		if now := time.Now(); now.Sub(last) >= progressEvents {
			last = now
			c.s.opt.Sessions.ReportImage(c.caller(), r.Tenant, map[string]any{"image": r.Reference, "step": p.Step, "layer": p.Layer, "done": p.Done, "total": p.Total})
		}
	}
	var img images.Image
	err := c.s.opt.Sessions.ChangeImage(c.caller(), session.ImageChange{
		Action: action, Tenant: r.Tenant, Reference: r.Reference, Event: session.EventImagePulled,
		Allow: func() error {
			allow := c.s.opt.AllowImage
			if action == imagePull && !c.who.all() {
				allow = c.s.opt.AllowPull
			}
			if allow == nil || full == "" {
				return nil
			}
			return allow(r.Tenant, full)
		},
		Do: func() (_ map[string]any, err error) {
			img, err = add()
			return map[string]any{"image": img.Name, "digest": img.Digest, "bytes": img.Bytes}, err
		},
	})
	return imageOf(img), err
}

func (c *call) removeImage() error {
	tenant, reference, err := c.imageName()
	if err != nil {
		return err
	}
	err = c.s.opt.Sessions.ChangeImage(c.caller(), session.ImageChange{
		Action: "image-remove", Tenant: tenant, Reference: reference, Event: session.EventImageRemoved,
		Do: func() (map[string]any, error) {
			return map[string]any{"image": reference}, c.s.opt.Images.Remove(c.r.Context(), tenant, reference)
		},
	})
	if err != nil {
		return err
	}
	return c.empty()
}

func (c *call) verifyImage() error {
	var q apitypes.ImageName
	if err := c.decode(&q); err != nil {
		return err
	}
	tenant, err := c.imageOwner(q.Shared)
	if err == nil {
		err = checkReference(q.Reference)
	}
	if err != nil {
		return err
	}
	ctx, cancel := c.untilGone()
	defer cancel()
	if err := c.s.opt.Images.Verify(ctx, tenant, q.Reference); err != nil {
		return err
	}
	return c.empty()
}

func (c *call) collectImages() error {
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	var got images.Collected
	err := c.s.opt.Sessions.ChangeImage(c.caller(), session.ImageChange{Action: "image-gc", Do: func() (_ map[string]any, err error) {
		got, err = c.s.opt.Images.GC(ctx)
		return map[string]any{"images": got.Images, "layers": got.Layers, "bytes": got.Bytes}, err
	}})
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, apitypes.ImagesCollected(got))
}

func imageOf(img images.Image) apitypes.Image {
	out := apitypes.Image{Layers: []string{}}
	spec.CopyFields(&out, img)
	if out.Layers == nil {
		out.Layers = []string{}
	}
	return out
}
