package policy

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/boxd/boxd/engine/spec"
)

// imageRules say which images a tenant may use.
type imageRules struct {
	field   string   // key of allowed in the configuration
	allowed []string // patterns; nil: every image
	digests bool     // references must have a digest
}

// anyImage is the pattern of every image except "host".
const anyImage = "*"

// fullPattern returns a pattern of images with full references. It returns false if s is not
// one of: "host"; "*"; a reference; "REPOSITORY:*", every tag and digest of a repository;
// "REGISTRY/*" and "REGISTRY/PATH/*", every repository below.
func fullPattern(s string) (string, bool) {
	if s == anyImage {
		return s, true
	}
	if repository, found := strings.CutSuffix(s, ":*"); found {
		r, ok := spec.ParseReference(repository + ":x")
		return r.Repository + ":*", ok
	}
	if path, found := strings.CutSuffix(s, "/*"); found {
		r, ok := spec.ParseReference(path + "/x/x")
		return strings.TrimSuffix(r.Repository, "x/x") + "*", ok
	}
	full, err := spec.CheckImage("", s)
	return full, err == nil
}

// checkPatterns makes the patterns of list full. field is their key in the configuration.
func checkPatterns(field string, list []string) error {
	for i, s := range list {
		full, ok := fullPattern(s)
		if !ok {
			return &spec.FieldError{Field: fmt.Sprintf("%s[%d]", field, i), Value: spec.Quote(s),
				Rule: `must be "host", "*" (every other image), a reference such as python:3.12, or all below a name: "python:*", "ghcr.io/acme/*"`}
		}
		list[i] = full
	}
	return nil
}

// matchesImage reports whether one of the patterns, which are full, has the image.
func matchesImage(patterns []string, image string) bool {
	r, _ := spec.ParseReference(image) // without a repository, only an exact pattern or "*" has it
	for _, p := range patterns {
		if p == image || p == anyImage && image != spec.HostImage {
			return true
		}
		if image == spec.HostImage || r.Repository == "" {
			continue
		}
		if repository, found := strings.CutSuffix(p, ":*"); found && repository == r.Repository {
			return true
		}
		if below, found := strings.CutSuffix(p, "*"); found && strings.HasSuffix(below, "/") && strings.HasPrefix(r.Repository, below) {
			return true
		}
	}
	return false
}

// validateImages checks the images of p, which it makes full, and that p's own image is one of them.
func (p *Profile) validateImages(field string) error {
	if err := checkPatterns(field+".images", p.Images); err != nil {
		return err
	}
	r, _ := spec.ParseReference(p.Image)
	switch {
	case p.Images != nil && !matchesImage(p.Images, p.Image):
		return &spec.FieldError{Field: field + ".image", Value: strconv.Quote(p.Image), Rule: fmt.Sprintf("must be one of %s.images: add it there, or name another", field)}
	case p.ImageDigests && p.Image != spec.HostImage && r.Digest == "":
		return &spec.FieldError{Field: field + ".image", Value: strconv.Quote(p.Image), Rule: fmt.Sprintf("must be NAME@sha256:DIGEST, because %s.image_digests is true", field)}
	case p.Pull != spec.PullNever && p.Images == nil:
		return &spec.FieldError{Field: field + ".pull", Value: spec.Quote(p.Pull),
			Rule: fmt.Sprintf("needs %s.images, because clients could otherwise have the daemon ask any host: list what sessions may pull, and \"host\" if they may have that", field)}
	}
	return nil
}

// mayHaveImage decides whether a session of profile, of tenant, may have the image.
func (p *Policy) mayHaveImage(tenant string, profile *Profile, image string) error {
	own := imageRules{"profiles." + profile.Name + ".images", profile.Images, profile.ImageDigests}
	if err := own.check(image, fmt.Sprintf("profile %q", profile.Name)); err != nil {
		return err
	}
	return p.rules(tenant).images.check(image, "tenant "+spec.Quote(tenant))
}

// CheckImage decides whether tenant may pull or import an image, whatever the profile of its sessions.
// For all tenants, "", the operator may have every image. The errors are those of [Policy.Resolve].
func (p *Policy) CheckImage(tenant, image string) error {
	full, err := spec.CheckImage("image", image)
	if err != nil || tenant == "" {
		return err
	}
	return p.rules(tenant).images.check(full, "tenant "+spec.Quote(tenant))
}

// CheckPull is CheckImage for an image that a caller of the tenant's, who is no administrator, has the daemon fetch.
// Without a list of images such callers could have the daemon ask any host.
func (p *Policy) CheckPull(tenant, image string) error {
	if err := p.CheckImage(tenant, image); err != nil || tenant == "" || p.rules(tenant).images.allowed != nil {
		return err
	}
	return &DeniedError{Field: "image", Value: spec.Quote(image),
		Rule: "tenant " + spec.Quote(tenant) + " may have every image, so its pulls could ask any host: list images in allowed_images, import the image, or have an administrator pull it"}
}

// RecheckImage decides again about the image of r, which an earlier policy may have allowed. If the
// profile of r is gone, the default profile counts.
func (p *Policy) RecheckImage(tenant string, r Resolved) error {
	profile, ok := p.profiles[r.Profile]
	if !ok {
		profile = p.profiles[p.config.DefaultProfile]
	}
	return p.mayHaveImage(tenant, &profile, r.Image)
}

// check refuses an image that breaks the rules of who.
func (r imageRules) check(image, who string) error {
	if r.allowed != nil && !matchesImage(r.allowed, image) {
		return &DeniedError{Field: "image", Value: strconv.Quote(image), Rule: fmt.Sprintf("%s may have %q: ask for one of these, or add it to %s", who, r.allowed, r.field)}
	}
	if ref, _ := spec.ParseReference(image); r.digests && image != spec.HostImage && ref.Digest == "" {
		return &DeniedError{Field: "image", Value: strconv.Quote(image), Rule: who + " needs a digest (image_digests): ask for NAME@sha256:DIGEST"}
	}
	return nil
}
