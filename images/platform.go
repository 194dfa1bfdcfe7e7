package images

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// parsePlatform reads "linux/amd64/v2". The empty string is this host.
func parsePlatform(s string) (v1.Platform, error) {
	if s == "" {
		return hostPlatform, nil
	}
	parts := strings.Split(s, "/")
	if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") || hasControl(s) {
		return v1.Platform{}, &engine.FieldError{Field: "platform", Value: spec.Quote(s), Rule: "must be OS/ARCHITECTURE[/VARIANT], such as linux/amd64"}
	}
	p := v1.Platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	return p, nil
}

// hostPlatform is this host's, without a variant: that of an amd64 is its level, and each runs the lowest.
var hostPlatform = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}

// rank says how well an image for got suits want: 0 not at all, more is better.
func rank(want, got v1.Platform) int {
	switch {
	case got.OS != want.OS || got.Architecture != want.Architecture:
		return 0
	case got.Variant == want.Variant:
		return 10
	case got.Architecture == "amd64":
		if got.Variant == "" {
			got.Variant = "v1"
		}
		if want.Variant == "" {
			want.Variant = "v1"
		}
		if len(got.Variant) == 2 && got.Variant[0] == 'v' && got.Variant[1] >= '1' && got.Variant <= want.Variant {
			return int(got.Variant[1] - '0')
		}
	case got.Architecture == "arm64" && (got.Variant == "v8" || got.Variant == ""):
		return 1 // every arm64 is v8
	case got.Variant == "":
		return 1
	}
	return 0
}

// maxNamed is how many platforms an error lists.
const maxNamed = 20

// choose returns the manifest of an index that suits want best.
func choose(want v1.Platform, index []v1.Descriptor) (v1.Descriptor, error) {
	best, found := 0, v1.Descriptor{}
	var there []string
	for _, d := range index {
		if d.Platform == nil {
			if len(index) == 1 { // its configuration is checked
				return d, nil
			}
			continue
		}
		p := v1.Platform{OS: d.Platform.OS, Architecture: d.Platform.Architecture, Variant: d.Platform.Variant}
		if p.OS != "unknown" && len(there) < maxNamed && !slices.Contains(there, p.String()) { // "unknown" are attestations
			there = append(there, p.String())
		}
		if r := rank(want, p); r > best {
			best, found = r, d
		}
	}
	if best == 0 {
		return found, missing(want, there...)
	}
	return found, nil
}

func missing(want v1.Platform, there ...string) error {
	return fmt.Errorf("%w: wanted %s, there is %s", ErrPlatform, spec.Quote(want.String()), spec.Quote(strings.Join(there, ", ")))
}

// check compares the configuration of an image with want. A configuration without a platform is for all.
func check(want v1.Platform, c *v1.ConfigFile) (v1.Platform, error) {
	got := v1.Platform{OS: c.OS, Architecture: c.Architecture, Variant: c.Variant}
	if got.OS == "" && got.Architecture == "" {
		return want, nil
	}
	if rank(want, got) == 0 {
		return got, missing(want, got.String())
	}
	return got, nil
}
