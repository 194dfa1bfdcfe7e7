package apitypes

import "time"

// ImagePull asks for an image of a registry. An image that is there is not fetched again.
type ImagePull struct {
	Reference string `json:"reference" doc:"As people write it, such as \"python:3.12\" or \"ghcr.io/a/b@sha256:…\"; at most 512 bytes."`
	Platform  string `json:"platform,omitempty" doc:"OS/architecture[/variant], such as \"linux/amd64\"; absent: the host's."`
	Shared    bool   `json:"shared,omitempty" doc:"The image is for every tenant. Only callers who may act for all tenants can ask for that."`
	Always    bool   `json:"always,omitempty" doc:"Ask the registry even if the daemon has the reference, which may mean another image now."`
}

// ImageName names an image of the daemon.
type ImageName struct {
	Reference string `json:"reference" doc:"As people write it, or a digest; at most 512 bytes."`
	Shared    bool   `json:"shared,omitempty" doc:"The shared image, even if the tenant has one of this name."`
}

// Image is an image that is complete. Env to Volumes are what its author says of the commands that run in it.
type Image struct {
	Name       string            `json:"name" doc:"Full reference, such as \"docker.io/library/python:3.12\", or the name of an imported image."`
	Tenant     string            `json:"tenant,omitempty" doc:"Tenant that owns the reference; absent: it is shared by all."`
	Digest     string            `json:"digest" doc:"Of the manifest of this platform: \"sha256:\" and 64 hexadecimal digits."`
	Platform   string            `json:"platform" doc:"OS/architecture[/variant]."`
	Layers     []string          `json:"layers" nullable:"false" doc:"IDs of the layers, lowest first. Images share them."`
	Bytes      int64             `json:"bytes" doc:"Size of all files of all layers."`
	Added      time.Time         `json:"added" doc:"When the reference began to mean this image."`
	Used       time.Time         `json:"used,omitzero" doc:"When a session last used it; absent: never."`
	Env        []string          `json:"env,omitempty" doc:"KEY=VALUE."`
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	WorkingDir string            `json:"working_dir,omitempty"`
	User       string            `json:"user,omitempty" doc:"UID, name, UID:GID, name:group or a mixture; absent: 0."`
	StopSignal string            `json:"stop_signal,omitempty" doc:"Such as SIGTERM."`
	Labels     map[string]string `json:"labels,omitempty"`
	Ports      []string          `json:"ports,omitempty" doc:"Declared, and ignored."`
	Volumes    []string          `json:"volumes,omitempty" doc:"Declared, and ignored."`
}

// ImageList is a list of images, ordered by name.
type ImageList struct {
	Images []Image `json:"images" nullable:"false"`
}

// ImageProgress is how far a pull is.
type ImageProgress struct {
	Step  string `json:"step" doc:"resolve, download, unpack or done."`
	Layer string `json:"layer,omitempty" doc:"Digest of the layer's blob."`
	Done  int64  `json:"done" doc:"Bytes."`
	Total int64  `json:"total" doc:"Bytes; 0: not known."`
}

// ImageEvent is one line of a streamed pull: its progress, or its end.
type ImageEvent struct {
	Progress *ImageProgress `json:"progress,omitempty"`
	Image    *Image         `json:"image,omitempty" doc:"The image; the last line."`
	Error    *Problem       `json:"error,omitempty" doc:"Why there is no image; the last line."`
}

// ImagesCollected is what a collection has deleted.
type ImagesCollected struct {
	Images int   `json:"images"`
	Layers int   `json:"layers"`
	Bytes  int64 `json:"bytes"`
}
