package langbot

import (
	"context"
	"encoding/json"
	"path"
	"strings"

	"github.com/boxd/boxd/langbot/grants"
	"github.com/boxd/boxd/langbot/protocol"
)

// configureAdmission installs the policy of a box_init, if it has one. A policy that was kept
// over a restart ends only when a box_init says so. The whole server has one policy, and while
// it requires admission, only the instance that set it may change it.
func (s *Server) configureAdmission(instance string, raw json.RawMessage) error {
	if raw == nil {
		return nil
	}
	s.mu.Lock()
	owner := s.admits
	s.mu.Unlock()
	if owner != "" && owner != instance {
		return nil
	}
	if err := s.book.Configure(raw); err != nil {
		return err
	}
	policy, invalid := s.book.Policy()
	if invalid != nil {
		s.log.Error("box.admission: nobody is admitted", "instance", instance, "error", invalid)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.strict = cached{}
	if policy.Required {
		s.admits = instance
	}
	return nil
}

// admit decides whether the action may run where admission is required.
func (k *call) admit(ctx context.Context) error {
	policy, invalid := k.s.book.Policy()
	if !policy.Required {
		return nil
	}
	if invalid != nil {
		return invalid
	}
	if r := k.s.readiness(ctx, k.settings(), false); !r.Ready {
		return protocol.Errorf(protocol.Readiness, "%s (failed checks: %s)", notReady, strings.Join(r.failed(), ", "))
	}
	if _, err := k.s.book.Live(k.at); err != nil {
		k.s.clearSoon() // the grant may have expired just now
		return err
	}
	switch k.action {
	case "box_exec", "box_create_session":
		return nil // the policy names their session
	}
	id, err := k.session()
	if err != nil {
		return err
	}
	if err := grants.CheckSession(k.at, id); err != nil {
		return err
	}
	if strings.HasSuffix(k.action, "_managed_process") {
		return grants.ErrProcesses
	}
	return nil
}

// applyAdmission overrides a spec with the policy.
func (k *call) applyAdmission(ctx context.Context, spec *protocol.BoxSpec) error {
	policy, _ := k.s.book.Policy()
	if !policy.Required {
		return nil
	}
	owned := grants.Owned{Skill: func(name string) (string, error) {
		root, err := k.s.skills.PackageRoot(ctx, k.skillStore(), name)
		if err == nil && root == "" {
			err = protocol.Errorf(protocol.BoxValidation, "Skill %q not found", name)
		}
		return root, err
	}}
	shared := k.settings().local.workspace
	if shared != "" {
		owned.HostPath = path.Join(shared, "tenants", k.at.Namespace())
	}
	if err := policy.Apply(spec, owned); err != nil {
		return err
	}
	if shared == "" { // boxd keeps the workspace itself
		spec.HostPath = nil
	}
	return nil
}
