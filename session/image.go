package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/policy"
)

// Images keeps the images of sessions; an [images.Store] does. It is safe for concurrent use.
type Images interface {
	Pull(ctx context.Context, r images.Request) (images.Image, error)
	Lease(tenant, reference, holder string) (images.Image, error)
	Leased(holder string) (images.Image, error)
	Release(holder string) error
	RetainLeases(keep func(holder string) bool) error
}

// ErrImageNotPresent: the store does not have the image of a session, and the policy says not to pull
// it.
var ErrImageNotPresent = errors.New("image is not present")

// sessionImage is the image that a session has for its whole life, whatever its reference means later.
type sessionImage struct {
	Digest string   `json:"digest"`
	Layers []string `json:"layers"`
	images.Config
}

// imageOf returns what a session keeps of img. It refuses a configuration that could not be obeyed.
func imageOf(img images.Image) (*sessionImage, error) {
	own := &sessionImage{img.Digest, slices.Clone(img.Layers), img.Config}
	own.Ports, own.Volumes = nil, nil
	refuse := func(cause error) (*sessionImage, error) {
		return nil, fmt.Errorf("%w: %w: choose another image, or change its configuration", images.ErrRefused, cause)
	}
	own.Env = slices.DeleteFunc(slices.Clone(own.Env), func(kv string) bool {
		return strings.IndexByte(kv, '=') < 1 // as other engines do
	})
	if own.WorkingDir != "" {
		own.WorkingDir = path.Join("/", own.WorkingDir)
	}
	args := own.args()
	if len(args) == 0 {
		args = []string{"true"}
	}
	if err := (engine.Command{Args: args, Env: own.Env, Dir: own.WorkingDir}).Validate(); err != nil {
		return refuse(fmt.Errorf("its configuration: %w", errors.New(err.Error()))) // no rule of the request
	}
	if own.StopSignal != "" {
		if _, ok := linux.ParseSignal(own.StopSignal); !ok {
			return refuse(fmt.Errorf("its stop signal %s is unknown", spec.Quote(own.StopSignal)))
		}
	}
	return own, nil
}

// args returns the default command; nil: there is none.
func (i *sessionImage) args() []string {
	if i == nil {
		return nil
	}
	return slices.Concat(i.Entrypoint, i.Cmd)
}

// stopSignal returns the signal that asks a process to end.
func (i *sessionImage) stopSignal() syscall.Signal {
	if i != nil {
		if sig, ok := linux.ParseSignal(i.StopSignal); ok {
			return sig
		}
	}
	return syscall.SIGTERM
}

// ground is what the commands of a session start from.
type ground struct {
	policy.Resolved
	image *sessionImage // nil: the host
}

func (s *session) groundLocked() ground {
	r := s.resolvedLocked()
	r.Network = r.Network && s.networkOff == "" // otherwise the variables would lead nowhere
	return ground{r, s.record.Image}
}

// environ returns the environment of a command: the image's, that of its network, the session's and its
// own, of which the later replace the earlier. A proxy that an image names is not there in a box.
func (g ground) environ(own []string) []string {
	env := mergeEnv(g.Env, own)
	if g.Network {
		env = egress.Environ(env, cmp.Or(g.Hostname, spec.DefaultHostname))
	}
	if g.image != nil {
		env = mergeEnv(g.image.Env, env)
	}
	return env
}

// workDir returns the directory in which a command starts: the one asked for, or else the workspace, or
// else the image's.
func (g ground) workDir(asked string) string {
	if asked == "" && g.image != nil && g.WorkspaceMode == spec.None {
		return g.image.WorkingDir
	}
	return workDir(g.Resolved, asked)
}

// makesDir reports whether a command that starts in dir creates it, as asked or because it is the image's own: other
// engines create that, too.
func (g ground) makesDir(dir string, asked bool) bool {
	return asked || g.image != nil && dir != "" && dir == g.image.WorkingDir
}

// program returns the arguments of a command and its directory. Without arguments it is the default
// command of the image, in the image's directory.
func (g ground) program(args []string, dir string) ([]string, string, error) {
	if len(args) > 0 {
		return args, dir, nil
	}
	if args = g.image.args(); len(args) == 0 {
		return nil, "", &engine.FieldError{Field: "args", Value: "[]", Rule: fmt.Sprintf("must name a program: the image %s has no command of its own", strconv.Quote(g.Image))}
	}
	if dir == "" {
		dir = g.image.WorkingDir
	}
	return args, dir, nil
}

// defaultProgram stands for the default command of an image that is not known yet.
var defaultProgram = []string{"(the image's command)"}

// leasePrefix begins the holder of a lease that a session has.
const leasePrefix = "session:"

func (k Key) leaseHolder() string { return leasePrefix + k.String() }

// takeImage leases the image of a new session, which it pulls before if the policy says so, and
// chooses the user unless the request does. The lease ends with releaseImage.
func (s *session) takeImage(ctx context.Context, c Caller, a *asked) error {
	r := a.resolved
	if r.Image == engine.HostImage {
		return nil
	}
	img, err := s.leaseImage(ctx, c, strconv.Quote(r.Image), r.Image, r.Pull)
	if err != nil {
		return err
	}
	own, err := imageOf(img)
	if err != nil {
		return fmt.Errorf("image %q: %w", r.Image, err)
	}
	user := r.User
	if a.request.User == nil {
		if user, err = s.m.userOf(ctx, r.Image, own); err != nil {
			return fmt.Errorf("image %q: %w", r.Image, err)
		}
	}
	s.mu.Lock()
	s.record.Image, s.record.Resolved.User = own, user
	s.mu.Unlock()
	return nil
}

// leaseImage leases what ref means in the store, or pulls it. image says for people which one it is.
func (s *session) leaseImage(ctx context.Context, c Caller, image, ref, pull string) (images.Image, error) {
	store := s.m.options.Images
	if store == nil {
		return images.Image{}, fmt.Errorf("%w: image %s: this daemon keeps no images: ask for %q", ErrImageNotPresent, image, engine.HostImage)
	}
	always := pull == spec.PullAlways
	for tries := 0; ; tries++ {
		if !always || tries > 0 {
			img, err := store.Lease(s.key.Tenant, ref, s.key.leaseHolder())
			if err == nil || !errors.Is(err, images.ErrUnknown) {
				return img, err
			}
			if !always && pull != spec.PullMissing {
				return img, fmt.Errorf("%w: image %s: pull or import it first (boxd image), or set pull of the profile", ErrImageNotPresent, image)
			}
			if tries == maxPulls {
				return img, fmt.Errorf("%w: image %s: it was pulled and collected at once, %d times: raise images.max_size", ErrImageNotPresent, image, tries)
			}
		}
		if err := s.pull(ctx, c, images.Request{Reference: ref, Tenant: s.key.Tenant, Always: always}); err != nil {
			err = causeOf(ctx, err)
			if image != strconv.Quote(ref) { // the store's own errors name ref only
				err = fmt.Errorf("image %s: %w", image, err)
			}
			return images.Image{}, err
		}
	}
}

// maxPulls bounds the pulls of an image that is collected before it can be leased.
const maxPulls = 2

// pullProgress is the least time between two events about the same step of a pull.
const pullProgress = time.Second

// pull pulls an image for the session, and publishes how far it is.
func (s *session) pull(ctx context.Context, c Caller, r images.Request) error {
	details := map[string]any{"image": r.Reference}
	if err := s.m.audit(c, s.key, audit.Entry{Action: "image-pull", Decision: audit.Allow, Details: details}); err != nil {
		return err
	}
	var last images.Progress
	var told time.Time
	r.Progress = func(p images.Progress) {
		if p.Step == last.Step && p.Layer == last.Layer && time.Since(told) < pullProgress {
			return
		}
		last, told = p, time.Now()
		s.publish(EventImageProgress, c, "", map[string]any{"image": r.Reference, "step": p.Step, "layer": p.Layer, "done": p.Done, "total": p.Total})
	}
	img, err := s.m.options.Images.Pull(ctx, r)
	if err != nil {
		_ = s.m.audit(c, s.key, audit.Entry{Action: "image-pull", Decision: audit.Failed, Reason: err.Error(), Details: details}) // reports its error
		return err
	}
	done := map[string]any{"image": img.Name, "digest": img.Digest, "bytes": img.Bytes}
	// The image is there, so a failure to audit that is only reported.
	_ = s.m.audit(c, s.key, audit.Entry{Action: "image-pull", Decision: audit.Done, Details: done})
	s.publish(EventImagePulled, c, "", done)
	return nil
}

// renewImage makes sure, before the next box of a session, that the store has the image which the session
// has had. It pulls that digest again if it is lost and the policy says so.
func (s *session) renewImage(ctx context.Context, c Caller) error {
	s.mu.Lock()
	own, r := s.record.Image, s.record.Resolved
	s.mu.Unlock()
	if own == nil {
		return nil
	}
	var img images.Image
	err := images.ErrUnknown
	if s.m.options.Images != nil {
		img, err = s.m.options.Images.Leased(s.key.leaseHolder())
	}
	if errors.Is(err, images.ErrUnknown) || err == nil && img.Digest != own.Digest {
		ref, pull := own.Digest, spec.PullNever
		if named, _ := spec.ParseReference(r.Image); named.Repository != "" && r.Pull != spec.PullNever && r.Pull != "" {
			named.Tag, named.Digest = "", own.Digest
			ref, pull = named.String(), spec.PullMissing
		}
		img, err = s.leaseImage(ctx, c, strconv.Quote(r.Image)+" with digest "+own.Digest, ref, pull)
	}
	if err != nil {
		return err
	}
	if !slices.Equal(img.Layers, own.Layers) {
		renewed := *own
		renewed.Layers = slices.Clone(img.Layers)
		s.mu.Lock()
		s.record.Image = &renewed
		s.mu.Unlock()
	}
	return nil
}

// releaseImage ends the lease of a session that is removed, or was not created.
func (s *session) releaseImage() {
	s.mu.Lock()
	image := s.record.Resolved.Image
	s.mu.Unlock()
	if s.m.options.Images == nil || image == engine.HostImage {
		return
	}
	if err := s.m.options.Images.Release(s.key.leaseHolder()); err != nil {
		s.m.report(s.key, "", "ending the lease of its image: "+err.Error()) // the next opening ends it
	}
}

// retainLeases ends the leases of sessions that do not exist.
func (m *Manager) retainLeases() {
	if m.options.Images == nil {
		return
	}
	known := map[string]bool{}
	for _, s := range m.all("") {
		known[s.key.leaseHolder()] = true
	}
	err := m.options.Images.RetainLeases(func(holder string) bool { return known[holder] || !strings.HasPrefix(holder, leasePrefix) })
	if err != nil {
		m.report(Key{}, "", "ending the leases of images: "+err.Error()) // they only keep images from being collected
	}
}

// noteImage records why the session, whose image is gone, has no box, and returns err. The next use tries
// again.
func (s *session) noteImage(err error) error {
	s.mu.Lock()
	if s.removing {
		s.mu.Unlock()
		return err
	}
	s.record.State, s.record.Reason = Failed, "building a new box: "+err.Error()
	write := s.m.store.enqueue(s.putLocked()...)
	s.mu.Unlock()
	return errors.Join(err, write.wait())
}
