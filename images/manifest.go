package images

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/boxd/boxd/engine/spec"
)

const (
	maxDocument  = 1 << 20   // a manifest, index or configuration, in bytes
	maxNested    = 4         // indexes, and the manifest below them
	maxRunConfig = 128 << 10 // what is kept of a configuration, in bytes of JSON
	maxLabels    = 16 << 10  // all labels; more, which are for people only, are left out
)

func digestOf(b []byte) string { return hexDigest(sha256Of(b)).String() }

func sha256Of(b []byte) hash.Hash {
	h := sha256.New()
	h.Write(b)
	return h
}

func hexDigest(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

// document is a manifest or an index. One that claims to be both means different things to different readers
// (CVE-2021-41190), so it is refused.
type document struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     types.MediaType `json:"mediaType"`
	Config        *v1.Descriptor  `json:"config"`
	Layers        []v1.Descriptor `json:"layers"`
	Manifests     []v1.Descriptor `json:"manifests"`
	FSLayers      json.RawMessage `json:"fsLayers"` // schema 1
}

func parseDocument(text []byte) (*document, error) {
	d := new(document)
	if len(text) > maxDocument {
		return nil, fmt.Errorf("%w: its manifest is larger than 1 MiB", ErrRefused)
	}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("%w: its manifest is not the JSON of one: %w", ErrCorrupt, err)
	}
	index, image := d.Manifests != nil, d.Config != nil || d.Layers != nil
	switch {
	case d.MediaType.IsSchema1() || d.SchemaVersion == 1 || d.FSLayers != nil:
		return nil, fmt.Errorf("%w: its manifest is of Docker's schema 1, which no longer exists: push it again with a current tool", ErrRefused)
	case d.SchemaVersion != 2:
		return nil, fmt.Errorf("%w: its manifest has schema version %d, must have 2", ErrRefused, d.SchemaVersion)
	case index == image, index && d.MediaType.IsImage(), image && d.MediaType.IsIndex():
		return nil, fmt.Errorf("%w: its manifest must list either layers or manifests, as its media type %s says", ErrCorrupt, spec.Quote(string(d.MediaType)))
	case d.MediaType != "" && !d.MediaType.IsImage() && !d.MediaType.IsIndex():
		return nil, fmt.Errorf("%w: its manifest has media type %s, which is not that of an image", ErrRefused, spec.Quote(string(d.MediaType)))
	}
	return d, checkDescriptors(d)
}

func checkDescriptors(d *document) error {
	if len(d.Layers) > spec.MaxLayers {
		return fmt.Errorf("%w: %d layers, at most %d are possible", ErrRefused, len(d.Layers), spec.MaxLayers)
	}
	all := slices.Concat(d.Layers, d.Manifests)
	if d.Config != nil {
		all = append(all, *d.Config)
	}
	for _, x := range all {
		if x.Digest.Algorithm != "sha256" || !spec.IsLayerID(x.Digest.Hex) {
			return fmt.Errorf("%w: digest %s, must be a SHA-256", ErrRefused, spec.Quote(x.Digest.String()))
		}
		if x.Size < 0 {
			return fmt.Errorf("%w: %s has the size %d", ErrCorrupt, x.Digest, x.Size)
		}
	}
	if d.Config == nil {
		return nil
	}
	if d.Config.Size > maxDocument {
		return fmt.Errorf("%w: its configuration is larger than 1 MiB", ErrRefused)
	}
	var sum int64
	for _, l := range d.Layers {
		switch l.MediaType {
		case types.OCILayer, types.OCILayerZStd, types.OCIUncompressedLayer, types.DockerLayer, types.DockerUncompressedLayer,
			"application/vnd.docker.image.rootfs.diff.tar.zstd":
		default:
			why := "must be a tar archive, as it is or compressed by gzip or zstd"
			switch {
			case !l.MediaType.IsDistributable():
				why = "registries do not have such layers"
			case strings.HasSuffix(string(l.MediaType), "+encrypted"):
				why = "boxd decrypts no layers"
			}
			return fmt.Errorf("%w: layer %s has media type %s: %s", ErrRefused, l.Digest, spec.Quote(string(l.MediaType)), why)
		}
		if sum += l.Size; sum < 0 {
			return fmt.Errorf("%w: the sizes of its layers exceed 2^63", ErrCorrupt)
		}
	}
	return nil
}

// parseConfig reads the configuration of an image that has this many layers.
func parseConfig(text []byte, layers int) (*v1.ConfigFile, error) {
	if len(text) > maxDocument {
		return nil, fmt.Errorf("%w: its configuration is larger than 1 MiB", ErrRefused)
	}
	c, err := v1.ParseConfigFile(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%w: its configuration is not the JSON of one: %w", ErrCorrupt, err)
	}
	if len(c.RootFS.DiffIDs) != layers || layers == 0 {
		return nil, fmt.Errorf("%w: its configuration lists %d layers and its manifest %d, must be the same number and not 0", ErrCorrupt, len(c.RootFS.DiffIDs), layers)
	}
	for _, d := range c.RootFS.DiffIDs {
		if d.Algorithm != "sha256" || !spec.IsLayerID(d.Hex) {
			return nil, fmt.Errorf("%w: diff ID %s, must be a SHA-256", ErrRefused, spec.Quote(d.String()))
		}
	}
	return c, nil
}

// runConfig is what boxd uses of a configuration. No value has a control character where it could change the
// meaning of a line, and none a NUL byte.
func runConfig(c *v1.ConfigFile) (Config, error) {
	in := c.Config
	out := Config{Env: in.Env, Entrypoint: in.Entrypoint, Cmd: in.Cmd, WorkingDir: in.WorkingDir, User: in.User, StopSignal: in.StopSignal, Labels: in.Labels,
		Ports: slices.Sorted(maps.Keys(in.ExposedPorts)), Volumes: slices.Sorted(maps.Keys(in.Volumes))}
	refused := func(field, value, rule string) (Config, error) {
		return Config{}, fmt.Errorf("%w: %s %s of its configuration: %s", ErrRefused, field, spec.Quote(value), rule)
	}
	labels := 0
	for name, value := range out.Labels {
		labels += len(name) + len(value)
	}
	if labels > maxLabels {
		out.Labels = nil
	}
	if text, err := json.Marshal(out); err != nil || len(text) > maxRunConfig {
		return Config{}, fmt.Errorf("%w: its configuration has %d bytes, more than %d, even without labels", ErrRefused, len(text), maxRunConfig)
	}
	for _, v := range out.Env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" || strings.ContainsRune(v, 0) || hasControl(name) {
			return refused("env", v, "must be NAME=VALUE without NUL bytes")
		}
	}
	for _, v := range slices.Concat(out.Entrypoint, out.Cmd) {
		if strings.ContainsRune(v, 0) {
			return refused("argument", v, "must not have NUL bytes")
		}
	}
	for field, v := range map[string]string{"user": out.User, "stop signal": out.StopSignal, "working directory": out.WorkingDir} {
		if hasControl(v) || len(v) > 4095 {
			return refused(field, v, "must be at most 4095 bytes without control characters")
		}
	}
	if d := out.WorkingDir; d != "" {
		out.WorkingDir = path.Clean("/" + d) // Docker takes a relative one as relative to the root
	}
	return out, nil
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// resolve fetches the manifest for the platform, beginning with first, which may be an index, and its
// configuration. fetch returns what the digest says.
func (in *incoming) resolve(want v1.Platform, first v1.Descriptor, fetch func(v1.Descriptor) ([]byte, error)) error {
	for range maxNested {
		if first.Size > maxDocument {
			return fmt.Errorf("%w: its manifest is larger than 1 MiB", ErrRefused)
		}
		text, err := fetch(first)
		if err != nil {
			return err
		}
		d, err := parseDocument(text)
		if err != nil {
			return err
		}
		if d.Config != nil {
			config, err := fetch(*d.Config)
			if err != nil {
				return err
			}
			return in.describe(text, config, want)
		}
		if first, err = choose(want, d.Manifests); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: indexes within indexes", ErrRefused)
}

// chainIDs are the chain IDs of a stack of layers, see image-spec config.md "Layer ChainID", as 64 digits.
func chainIDs(diffIDs []v1.Hash) []string {
	ids := make([]string, len(diffIDs))
	for i, d := range diffIDs {
		ids[i] = d.Hex
		if i > 0 {
			ids[i] = strings.TrimPrefix(digestOf([]byte("sha256:"+ids[i-1]+" "+d.String())), "sha256:")
		}
	}
	return ids
}
