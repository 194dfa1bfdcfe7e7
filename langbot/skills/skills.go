// Package skills is the skill store of the LangBot door: directories with a SKILL.md,
// one tree per namespace, and the actions on them.
//
// Boxes may write into these trees at any time, so they are only ever reached through a
// descriptor of their root. Where a tree is, and how large it may get, is up to others.
package skills

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"

	"github.com/boxd/boxd/langbot/transfer"
)

// Options of a Store.
type Options struct {
	// Open returns a descriptor of the root of a namespace's tree, which the store
	// closes. If there is none it is made if make is set, and os.ErrNotExist otherwise.
	Open func(ctx context.Context, ns string, make bool) (*os.File, error)
	// Path is what clients are told, and say, is the absolute path of that root.
	Path func(ns string) string
	// Logger gets what is wrong with skills that are passed over; nil: nobody.
	Logger *slog.Logger
}

// Store does the actions. It is safe for concurrent use: what is done in one namespace
// is done one after the other, and holds up no other.
type Store struct {
	o Options
}

// New returns a store.
func New(o Options) *Store { return &Store{o: o} }

// Do does one box_*skill* action in namespace ns and returns the data of the answer.
// Files that were sent are taken from t.
func (s *Store) Do(ctx context.Context, ns, action string, data json.RawMessage, t *transfer.Set) (any, error) {
	return nil, errors.ErrUnsupported
}

// Has says whether Do knows the action.
func Has(action string) bool { return false }
