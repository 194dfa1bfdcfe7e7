package engine

import (
	"context"

	"github.com/boxd/boxd/engine/spec"
)

// Layers keeps the read-only layers of images: directories of which [Spec].Layers makes the
// root of a box. A box writes each of them, never a process of the host. It is safe for
// concurrent use.
type Layers interface {
	// MakeLayer creates an empty layer that is not published. A box with [Spec].Unpacks
	// mounts it by its name ([Mount].Layer) and writes to it: the files of the layer
	// below "fs", and in the file "opaque" the directories that hide the content of lower
	// layers, relative to "fs", each followed by a NUL byte. "fs" itself hides nothing: there,
	// a whiteout has to hide each entry. An unpublished layer ends
	// with AbandonLayer, with its client and with the engine's launcher, and the boxes that
	// write it do as well. Use new names: the layers of a client that is gone may be removed after
	// its successor has connected.
	MakeLayer(ctx context.Context, name string) error
	// PublishLayer makes the unpublished layer name the layer id, for good: from now on it
	// is read-only. The layer is on disk when PublishLayer returns. If a layer id exists
	// already, the unpublished one is deleted, if there is one. ErrLayerInUse: a box has it
	// mounted. ErrNoLayer: there is neither. An [ErrInvalid] says what a box wrote that a
	// layer cannot be.
	PublishLayer(ctx context.Context, name, id string) error
	// AbandonLayer deletes an unpublished layer. Abandoning an unknown one does nothing.
	AbandonLayer(ctx context.Context, name string) error
	// RemoveLayer deletes a published layer. Removing an unknown one does nothing. If a box
	// uses it, the error is ErrLayerInUse.
	RemoveLayer(ctx context.Context, id string) error
	// Layers lists the published layers, sorted by ID.
	Layers(ctx context.Context) ([]string, error)
}

// ValidateLayerName checks the name of an unpublished layer, which follows the rules of a
// volume's name, and is not 64 hexadecimal digits. field is its name in errors.
func ValidateLayerName(field, name string) error {
	if !spec.IsLayerName(name) {
		return &FieldError{Field: field, Value: spec.Quote(name), Rule: `must be 1 to 64 of a-z, 0-9 and "-", starting with a letter or digit, and not the ID of a layer`}
	}
	return nil
}

// ValidateLayerID checks the ID of a published layer. field is its name in errors.
func ValidateLayerID(field, id string) error {
	if !spec.IsLayerID(id) {
		return &FieldError{Field: field, Value: spec.Quote(id), Rule: "must be 64 hexadecimal digits in lower case"}
	}
	return nil
}
