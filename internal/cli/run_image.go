package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/internal/flagtext"
	"github.com/boxd/boxd/session/imageuser"
)

// findImage returns the image of --image, and pulls it as --pull says.
func (a *App) findImage(f *runFlags, o EngineOptions) (img images.Image, err error) {
	ref, err := spec.CheckReference("--image", f.image)
	if err != nil {
		return img, err
	}
	signals := a.watchSignals()
	defer func() {
		signals.Stop()
		if sig := signals.Received(); sig != 0 && err != nil {
			err = stoppedBy(sig)
		}
	}()
	if f.pull != spec.PullAlways {
		err := a.localImages(signals.Context, o, f.initPath, nil, true, func(s *images.Store) (err error) {
			img, err = s.Get(images.Shared, f.image)
			return err
		})
		unknown := errors.Is(err, images.ErrUnknown) || errors.Is(err, fs.ErrNotExist) // a store that nobody has used yet
		if unknown && f.pull == spec.PullNever {
			err = &engine.FieldError{Field: "--image", Value: spec.Quote(f.image), Rule: "unknown image: boxd image pull --local " + f.image + ", or boxd image import --local FILE --name " + f.image}
		}
		if !unknown || f.pull == spec.PullNever {
			return img, err
		}
	}
	login, err := a.login("", ref.Registry())
	if err != nil {
		return img, err
	}
	bars := a.newLayerBars(f.json || asTerminal(a.Stderr) == nil)
	return img, a.localImages(signals.Context, o, f.initPath, nil, false, func(s *images.Store) (err error) {
		img, err = s.Pull(signals.Context, images.Request{Reference: f.image, Always: f.pull == spec.PullAlways, Login: login,
			Progress: func(p images.Progress) { bars.show(apitypes.ImageProgress(p)) }})
		if err != nil && f.pull == spec.PullMissing {
			err = fmt.Errorf("--image %s is not on this host: %w", spec.Quote(f.image), err)
		}
		return err
	})
}

// useImage makes r a request for a box of img. Flags that were given go before what the image says.
func (r *request) useImage(img images.Image, f *runFlags) error {
	r.spec.Image, r.spec.Layers = img.Name, img.Layers
	var env flagtext.Environment
	for _, kv := range slices.Concat(img.Env, r.cmd.Env) {
		if strings.Contains(kv, "=") {
			if err := env.Set(kv, nil); err != nil {
				return fmt.Errorf("variable %s: %w", spec.Quote(flagtext.Key(kv)), err)
			}
		}
	}
	r.cmd.Env = env.List
	if len(r.cmd.Args) == 0 {
		r.cmd.Args = slices.Concat(img.Entrypoint, img.Cmd)
	}
	if len(r.cmd.Args) == 0 {
		return errors.New("it has no command of its own: boxd run --image " + f.image + " -- CMD")
	}
	if f.workdir == "" && f.workspace == "" {
		r.cmd.Dir, r.cmd.MakeDir = img.WorkingDir, f.mkdir || img.WorkingDir != "" // other engines create it, too
	}
	if f.user == nil && img.User != "" {
		u, known, err := imageuser.Number(img.User)
		if err != nil {
			return err
		}
		if r.spec.User = u; !known {
			r.userName = img.User
		}
	}
	if err := r.spec.Validate(); err != nil {
		return err
	}
	return r.cmd.Validate()
}
