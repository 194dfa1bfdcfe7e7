package native

import (
	"context"
	"errors"
	"log/slog"

	"github.com/boxd/boxd/engine"
)

// ServiceOptions of [Connect].
type ServiceOptions struct {
	// Socket of the launcher service.
	Socket string
	// Logger gets what is not an error of a call; nil discards it.
	Logger *slog.Logger
}

// Service is an engine.Service: a connection to a launcher that runs as a service.
// When the launcher dies its boxes and what runs in them go on, and the connection
// is made again.
type Service struct{}

var errTODO = errors.New("not implemented")

// Connect connects to the launcher service, which serves one client at a time.
func Connect(ctx context.Context, o ServiceOptions) (*Service, error) { return nil, errTODO }

// Create implements engine.Service.
func (s *Service) Create(ctx context.Context, spec engine.Spec) (engine.LiveBox, error) {
	return nil, errTODO
}

// Adopt implements engine.Service. With the zero Spec the launcher's own record of
// the box counts.
func (s *Service) Adopt(ctx context.Context, id string, spec engine.Spec) (engine.LiveBox, error) {
	return nil, errTODO
}

// Boxes implements engine.Service.
func (s *Service) Boxes(ctx context.Context) ([]string, error) { return nil, errTODO }

// Discard implements engine.Service.
func (s *Service) Discard(ctx context.Context, id string) error { return errTODO }

// Health implements engine.Service.
func (s *Service) Health(ctx context.Context) error { return errTODO }

// Close lets go of the boxes, which stay.
func (s *Service) Close() error { return errTODO }

// Stop ends the launcher service, on request with its boxes, and closes s.
func (s *Service) Stop(ctx context.Context, removeBoxes bool) error { return errTODO }
