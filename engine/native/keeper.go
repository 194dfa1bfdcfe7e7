package native

import (
	"context"
	"log/slog"
)

// LauncherOptions of [StartLauncher].
type LauncherOptions struct {
	// InitPath is the boxd-init binary, as in [Options].
	InitPath string
	// StateDir is as in [Options]; empty is DefaultStateDir.
	StateDir string
	// ClientUID and ClientGID own the service's socket: the user that may connect,
	// besides root.
	ClientUID, ClientGID int
	// Logger gets what is not an error of a call; nil discards it.
	Logger *slog.Logger
}

// StartLauncher makes sure that a launcher service of this program's version runs
// for a state directory, and returns its socket. Only root can. The service
// outlives the caller.
func StartLauncher(ctx context.Context, o LauncherOptions) (socket string, err error) {
	return "", errTODO
}
