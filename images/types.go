// Package images is the store of images: it pulls and imports them, checks every digest and size, and keeps their
// manifests, configurations and references. It decompresses nothing and writes no file of an image: an [Unpacker]
// does that, in a box. It knows neither boxes nor mounts.
package images

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/boxd/boxd/engine"
)

// Shared is the tenant of images that every tenant can use: those of the operator.
const Shared = ""

// Image is an image of the store whose layers are complete. It is a value.
type Image struct {
	// Name is the full reference: "docker.io/library/python:3.12". An imported image has
	// the name that it was given.
	Name string `json:"name"`
	// Tenant owns the reference; Shared: the operator.
	Tenant string `json:"tenant,omitempty"`
	// Digest is "sha256:" and 64 hexadecimal digits, of the manifest of this platform.
	Digest string `json:"digest"`
	// Platform is OS/architecture[/variant]: "linux/amd64".
	Platform string `json:"platform"`
	// Layers are the IDs of the engine's layers, lowest first and each once: engine.Spec.Layers.
	Layers []string `json:"layers"`
	// Bytes is the size of all files of all layers.
	Bytes int64 `json:"bytes"`
	// Added is when the reference began to mean this image, Used when a box last used it.
	Added time.Time `json:"added"`
	Used  time.Time `json:"used,omitzero"`
	Config
}

// Config is what the image says of the commands that run in it.
type Config struct {
	Env        []string          `json:"env,omitempty"` // KEY=VALUE
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	WorkingDir string            `json:"working_dir,omitempty"` // absolute; empty: none
	User       string            `json:"user,omitempty"`        // UID, name, UID:GID, name:group or a mixture; empty: 0
	StopSignal string            `json:"stop_signal,omitempty"` // "SIGTERM"; empty: none
	Labels     map[string]string `json:"labels,omitempty"`
	// Ports and Volumes are what the image declares. boxd ignores and lists them.
	Ports   []string `json:"ports,omitempty"`
	Volumes []string `json:"volumes,omitempty"`
}

// Conditions to test for with errors.Is. Each error is one line that says what to do.
var (
	ErrUnknown  = errors.New("unknown image")          // neither the store nor the registry has it
	ErrLogin    = errors.New("login refused")          // the registry demands a login, or another one
	ErrCorrupt  = errors.New("image is damaged")       // a digest, a size or an archive is wrong
	ErrPlatform = errors.New("no image for this host") // the image is for other architectures only
	ErrRefused  = errors.New("image refused")          // it breaks a rule of boxd's: too many entries, ids out of range
	ErrQuota    = errors.New("quota of images reached")
	ErrRegistry = errors.New("registry not reachable")
	ErrNoSpace  = errors.New("no space for the image")
)

// Unpacker turns the blob of a layer into a layer of the engine. It is safe for concurrent use.
type Unpacker interface {
	// Unpack reads the blob, which is what its digest says, and publishes the layer. An
	// error that the archive causes wraps ErrCorrupt or ErrRefused, a full disk ErrNoSpace
	// or the kernel's error. After an error nothing of the layer is left.
	Unpack(ctx context.Context, l Layer) (Unpacked, error)
	// Sum computes the sum of a published layer as it is on disk now.
	Sum(ctx context.Context, id string) (string, error)
}

// Layer is what an Unpacker gets.
type Layer struct {
	Blob io.Reader // compressed by gzip or zstd, or not at all
	Size int64     // of Blob, in bytes; 0: not known
	// DiffID is the SHA-256 of the tar stream, 64 hexadecimal digits. A stream with
	// another one is ErrCorrupt. Empty: it is not known, and Unpacked.ID says it. The stream
	// is then a root file system: without the end mark of tar it is ErrCorrupt, because it
	// may have been cut off, and without files it is ErrRefused.
	DiffID string
	// ChainID is the chain ID of this layer on those below it (image-spec config.md "Layer ChainID"), 64
	// hexadecimal digits. Empty: there are no layers below.
	ChainID string
	// Below are the IDs of the layers below, lowest first, which are published.
	Below []string
	// MaxBytes is how much the layer may hold.
	MaxBytes int64
	// Progress, if not nil, is told at most every 100 ms how many bytes of Blob were read so far.
	Progress func(int64)
}

// Unpacked is a published layer.
type Unpacked struct {
	// ID is the layer's diff ID; or, if what the layer contains depends on the layers below
	// it, Layer.ChainID.
	ID      string           `json:"id"`
	Bytes   int64            `json:"bytes"`
	Entries int64            `json:"entries"`
	Sum     string           `json:"sum"` // see Unpacker.Sum
	Skipped map[string]int64 `json:"skipped,omitempty"`
	// Bundle says that the layer has at its top what an archive of images has there.
	Bundle bool `json:"bundle,omitempty"`
	// Inherits says that what the layer contains depends on the layers below it.
	Inherits bool `json:"inherits,omitempty"`
	// Origins are blobs from which the layer was made, the latest last. The Store sets them.
	Origins []origin `json:"origins,omitempty"`
}

// origin is a blob from which a layer was made.
type origin struct {
	Blob   string `json:"blob"`             // 64 hexadecimal digits
	Tenant string `json:"tenant,omitempty"` // who brought it
}

// Options of a Store.
type Options struct {
	Unpacker Unpacker
	Layers   engine.Layers
	// Registries by host ("docker.io"); a host without an entry is asked by https without login.
	Registries map[string]Registry
	// Platform is OS/architecture[/variant]; empty: this host's.
	Platform string
	// MaxBytes bounds the files of all layers: the images that were not used longest go
	// first. 0: no bound. TenantBytes bounds the images of one tenant, as if it shared no
	// layer with others. Neither counts the database, in which a tenant has at most 1,000
	// references of 128 KiB, nor downloads and archives that have not been unpacked.
	MaxBytes, TenantBytes int64
	// Stall is how long a registry may be silent. In twice that time it must send 1 MiB of a
	// layer, or the rest. 0: 30 seconds.
	Stall time.Duration
	// Room, if not nil, is called for each download and uploaded archive, and every 16 MiB of
	// it. If the disk is about to be full it returns an error, which ends the request.
	Room func() error
	Log  *slog.Logger // nil: nothing is logged

	pause time.Duration // before the first retry of a request; 0: firstPause. Tests shorten it.
}

// Registry says how to reach a registry.
type Registry struct {
	Mirrors  []string // "https://host[/path]", asked first, in this order
	Insecure bool     // plain http, or a certificate that nobody vouches for
	// Login is "user:password", or "" for none. LoginFile names a file with that in its
	// first line, which is read for each pull, and only if Login is empty.
	Login, LoginFile string
}

// Progress is how far a pull or import is.
type Progress struct {
	Step  string `json:"step"`            // "resolve", "download", "unpack", "done"
	Layer string `json:"layer,omitempty"` // digest of the layer's blob
	Done  int64  `json:"done"`            // bytes
	Total int64  `json:"total"`           // bytes; 0: not known
}

// Request is what to pull or import, and for whom.
type Request struct {
	// Reference is as people write it: "python:3.12", "ghcr.io/a/b@sha256:…". For an import
	// it is the name that the image gets; empty: the name in the archive.
	Reference string
	Tenant    string
	Platform  string // replaces Options.Platform
	Always    bool   // ask the registry even if the store has the reference
	// Login replaces that of the registry: "user:password".
	Login string
	// Progress, if not nil, is called for each step and at most every 100 ms, by one
	// goroutine at a time.
	Progress func(Progress)
	// Allow, if not nil, is called by imports with the full reference that the image gets, which the
	// archive may choose, before anything is unpacked. Its error ends the request.
	Allow func(reference string) error
}
