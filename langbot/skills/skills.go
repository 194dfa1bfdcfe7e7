// Package skills is the skill store of the LangBot door: directories with a SKILL.md, in one tree
// per namespace, and the actions on them.
//
// Boxes may write into these trees at any time. So the store reaches a tree only through a
// descriptor of its root, bounds everything that it reads, and never waits for a file. Its caller
// decides where a tree is, and how large it may grow.
package skills

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"sync"

	"github.com/boxd/boxd/internal/keyed"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/langbot/transfer"
)

// Root is the directory with the skills of one namespace.
type Root struct {
	Namespace string
	// Path is the directory's absolute path as clients know it.
	Path string
	// Open returns a descriptor of the directory, which the store closes. With make, it creates
	// a missing directory; without, the error may be os.ErrNotExist. Clients see other errors
	// only if they are a *[protocol.Error]; the rest is logged.
	Open func(ctx context.Context, make bool) (*os.File, error)
}

// Store carries out the actions. It is safe for concurrent use: actions of one namespace run one
// after the other, and do not hold up other namespaces.
type Store struct {
	log   *slog.Logger
	locks keyed.Locks // by namespace
}

// New returns a store. It logs the reasons why it skips skills.
func New(log *slog.Logger) *Store { return &Store{log: log} }

// op is an action in progress.
type op struct {
	ctx   context.Context
	store *Store
	data  json.RawMessage
	files *transfer.Set
	tree  *tree
	known func() ([]owner, error) // owners, as they were when first asked for
	cut   bool                    // the search for them reached a bound
}

// action describes how an action is carried out.
type action struct {
	do    func(*op) (any, error)
	make  bool // create a missing tree
	class protocol.Class
}

var actions = map[string]action{
	"box_list_skills":          {(*op).list, false, protocol.ValueError},
	"box_get_skill":            {(*op).get, false, protocol.ValueError},
	"box_create_skill":         {(*op).create, true, protocol.BoxValidation},
	"box_update_skill":         {(*op).update, false, protocol.BoxValidation},
	"box_delete_skill":         {(*op).delete, false, protocol.BoxValidation},
	"box_scan_skill_directory": {(*op).scan, false, protocol.BoxValidation},
	"box_list_skill_files":     {(*op).listFiles, false, protocol.BoxValidation},
	"box_read_skill_file":      {(*op).readFile, false, protocol.BoxValidation},
	"box_write_skill_file":     {(*op).writeFile, false, protocol.BoxValidation},
	"box_preview_skill_zip":    {(*op).previewZip, false, protocol.BoxValidation},
	"box_install_skill_zip":    {(*op).installZip, true, protocol.BoxValidation},
}

// Has reports whether Do knows the action.
func Has(action string) bool {
	_, ok := actions[action]
	return ok
}

// Do carries out one box_*skill* action in root and returns the data of the answer. It takes
// uploaded files from t. Errors are of type *[protocol.Error], or that of ctx.
func (s *Store) Do(ctx context.Context, root Root, action string, data json.RawMessage, t *transfer.Set) (any, error) {
	a, ok := actions[action]
	if !ok {
		return nil, protocol.Errorf(protocol.ValueError, "Action %s not found", action)
	}
	return s.do(ctx, root, a, data, t)
}

// PackageRoot returns the directory of a skill as clients know it, "" if there is no such skill.
// Errors are those of Do.
func (s *Store) PackageRoot(ctx context.Context, root Root, name string) (string, error) {
	find := func(o *op) (any, error) {
		skill, _, err := o.find(name)
		return skill.PackageRoot, err
	}
	answer, err := s.do(ctx, root, action{do: find, class: protocol.ValueError}, nil, nil)
	if err != nil {
		return "", err
	}
	return answer.(string), nil
}

// do carries out an action while no other runs in the namespace.
func (s *Store) do(ctx context.Context, root Root, a action, data json.RawMessage, t *transfer.Set) (any, error) {
	unlock, err := s.locks.LockContext(ctx, root.Namespace)
	if err != nil {
		return nil, ctx.Err()
	}
	defer unlock()
	answer, err := s.doLocked(ctx, root, a, data, t)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, classify(a.class, err)
	}
	return answer, nil
}

func (s *Store) doLocked(ctx context.Context, root Root, a action, data json.RawMessage, t *transfer.Set) (any, error) {
	tree, err := s.open(ctx, root, a.make)
	if err != nil {
		return nil, err
	}
	defer tree.close()
	o := &op{ctx: ctx, store: s, data: data, files: t, tree: tree}
	o.known = sync.OnceValues(func() ([]owner, error) { return o.owners(silent) })
	if tree.root != nil && !tree.registered {
		if err := o.registerAll(); err != nil {
			s.log.Warn("registering the names of skills (it is tried again)", "namespace", root.Namespace, "error", err)
		}
	}
	return a.do(o)
}
