package langbot

import (
	"context"
	"encoding/json"
	"path"
	"strings"

	"github.com/boxd/boxd/langbot/grants"
	"github.com/boxd/boxd/langbot/protocol"
)

// configureAdmission takes over the policy of box_init, if it has one: a policy that was
// kept over a restart ends by word, not by silence. It is one for the whole server: an
// instance that says nothing of admission does not speak for the one that does.
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

// requireAdmission has the operator's settings count from the start where they require
// admission. That they do not is for box_init to say: see Book.
func (s *Server) requireAdmission() error {
	raw := s.base.said["admission"]
	if p, _ := grants.ParsePolicy(raw); !p.Required {
		return nil
	}
	return s.book.Configure(raw)
}

// admit says whether the action may be done where admission is required.
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
		k.s.clearSoon() // it may have expired just now
		return err
	}
	switch k.action {
	case "box_exec", "box_create_session":
		return nil // their session is given its name
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

// applyAdmission puts the policy in the place of what a spec says.
func (k *call) applyAdmission(ctx context.Context, spec *protocol.BoxSpec) error {
	policy, _ := k.s.book.Policy()
	if !policy.Required {
		return nil
	}
	owned := grants.Owned{Skill: func(name string) (string, error) { return k.skillRoot(ctx, name) }}
	shared := k.settings().local.workspace
	if shared != "" {
		owned.HostPath = path.Join(shared, "tenants", k.at.Namespace())
	}
	if err := policy.Apply(spec, owned); err != nil {
		return err
	}
	if shared == "" { // the workspace is one of boxd's own
		spec.HostPath = nil
	}
	return nil
}

// skillRoot is where the skill of a name is.
func (k *call) skillRoot(ctx context.Context, name string) (string, error) {
	root, err := k.s.skills.PackageRoot(ctx, k.skillStore(), name)
	if err == nil && root == "" {
		err = protocol.Errorf(protocol.BoxValidation, "Skill %q not found", name)
	}
	return root, err
}

// mayRelay says whether managed processes may be reached at all.
func (s *Server) mayRelay() error {
	if policy, _ := s.book.Policy(); policy.Required {
		return grants.ErrProcesses
	}
	return nil
}
