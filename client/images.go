package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"

	"github.com/boxd/boxd/api/apitypes"
)

// Images lists the images that the tenant can use, its own and the shared ones, sorted by name.
func (c *Client) Images(ctx context.Context) ([]apitypes.Image, error) {
	l, err := fetch[apitypes.ImageList](ctx, c, call{method: "GET", path: []string{"images"}})
	return l.Images, err
}

// Image returns the image that n names, the tenant's own before a shared one.
func (c *Client) Image(ctx context.Context, n apitypes.ImageName) (apitypes.Image, error) {
	return fetch[apitypes.Image](ctx, c, call{method: "GET", path: []string{"images", "inspect"}, query: imageQuery(n)})
}

func imageQuery(n apitypes.ImageName) url.Values {
	q := url.Values{"reference": {n.Reference}}
	if n.Shared {
		q.Set("shared", "1")
	}
	return q
}

// PullImage has the daemon fetch an image from its registry, unless the daemon has it already. progress, if not nil,
// is called for each step. Cancelling ctx ends the pull, unless other callers wait for the same image.
func (c *Client) PullImage(ctx context.Context, r apitypes.ImagePull, progress func(apitypes.ImageProgress)) (apitypes.Image, error) {
	return c.addImage(ctx, call{method: "POST", path: []string{"images"}, body: r}, progress)
}

// addImage sends q, whose answer is a line for each step and a last one with the image or an error.
func (c *Client) addImage(ctx context.Context, q call, progress func(apitypes.ImageProgress)) (apitypes.Image, error) {
	q.accept = "application/x-ndjson"
	resp, err := c.send(ctx, q)
	if err != nil {
		return apitypes.Image{}, err
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(resp.Body)
	for {
		var e apitypes.ImageEvent
		if err := dec.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return apitypes.Image{}, fmt.Errorf("the stream ended before the image was complete: %w", err)
		}
		switch {
		case e.Error != nil:
			return apitypes.Image{}, &Error{*e.Error}
		case e.Image != nil:
			return *e.Image, nil
		case e.Progress != nil && progress != nil:
			progress(*e.Progress)
		}
	}
}

// ImportOptions control ImportImage. With the zero value, the archive names the image.
type ImportOptions struct {
	Name     string // reference that the image gets; a root file system needs one
	Platform string // OS/architecture[/variant], if the archive has several
	Shared   bool   // for every tenant; needs a caller who may act for all of them
	// Progress, if not nil, is called for each step after the archive was sent.
	Progress func(apitypes.ImageProgress)
}

// ImportImage sends the daemon a tar archive: an OCI layout, an archive of "docker save", or a root file system.
func (c *Client) ImportImage(ctx context.Context, archive io.Reader, o ImportOptions) (apitypes.Image, error) {
	q := url.Values{}
	for name, value := range map[string]string{"name": o.Name, "platform": o.Platform} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if o.Shared {
		q.Set("shared", "1")
	}
	return c.addImage(ctx, call{method: "POST", path: []string{"images", "import"}, query: q, raw: archive}, o.Progress)
}

// RemoveImage removes a reference. The layers go with the next collection, unless another image or a session needs them.
func (c *Client) RemoveImage(ctx context.Context, n apitypes.ImageName) error {
	return c.do(ctx, call{method: "DELETE", path: []string{"images"}, query: imageQuery(n)}, nil)
}

// VerifyImage compares an image on disk with what was pulled. apitypes.CodeImageDamaged: they differ.
func (c *Client) VerifyImage(ctx context.Context, n apitypes.ImageName) error {
	return c.do(ctx, call{method: "POST", path: []string{"images", "verify"}, body: n}, nil)
}

// CollectImages deletes the layers and images that nothing needs. It needs an administrator.
func (c *Client) CollectImages(ctx context.Context) (apitypes.ImagesCollected, error) {
	return fetch[apitypes.ImagesCollected](ctx, c, call{method: "POST", path: []string{"images", "gc"}})
}
