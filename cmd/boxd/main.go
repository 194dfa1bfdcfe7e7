// Command boxd runs untrusted code in hardened boxes. See "boxd --help".
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/images/install"
	"github.com/boxd/boxd/internal/cli"
	"github.com/boxd/boxd/internal/daemon"
	"github.com/boxd/boxd/internal/doctor"
	_ "github.com/boxd/boxd/internal/quickrun" // runs before main
	"github.com/boxd/boxd/internal/version"
)

func main() {
	app := cli.App{
		Version:    version.Version,
		Stdin:      os.Stdin,
		Stdout:     os.Stdout,
		Stderr:     os.Stderr,
		LookupEnv:  os.LookupEnv,
		NewEngine:  newEngine,
		OpenImages: openImages,
		Examine:    doctor.Gather,
		Serve:      func(o cli.ServeOptions) error { return daemon.Run(daemonOptions(o)) },
		CheckServe: func(o cli.ServeOptions) (found, warnings []error) { return daemon.Check(daemonOptions(o)) },
	}
	os.Exit(app.Main(os.Args[1:]))
}

// newEngine starts a launcher that lives as long as this process.
func newEngine(ctx context.Context, o cli.EngineOptions) (engine.Engine, error) {
	e, err := native.Start(ctx, native.Options{InitPath: o.InitPath, StateDir: o.StateDir, DataDir: o.DataDir, OneBox: o.OneBox, Runtimes: daemon.Runtimes(o.Programs), Logger: newLogger()})
	if err != nil {
		return nil, err // not e: a nil *native.Engine is not a nil engine.Engine
	}
	return e, nil
}

// minFree is how many percent of the disk the images of this host leave free, as the daemon does by default.
const minFree = 5

// openImages opens the images of this host, with a launcher of their own that unpacks layers.
func openImages(ctx context.Context, o cli.EngineOptions, registries map[string]images.Registry) (*images.Store, func() error, error) {
	if err := os.MkdirAll(filepath.Dir(o.DataDir), 0o755); err != nil {
		return nil, nil, fmt.Errorf("data directory: %w", err)
	}
	e, err := native.Start(ctx, native.Options{InitPath: o.InitPath, StateDir: o.StateDir, DataDir: o.DataDir, Logger: newLogger()})
	if err != nil {
		return nil, nil, err
	}
	room := func() error { return daemon.Room([]string{o.DataDir}, minFree) }
	s, err := images.Open(cli.ImagesDir(o.DataDir), images.Options{
		Unpacker: install.New(install.Options{Create: e.Create, Layers: e, AllowDegraded: o.AllowDegraded, Room: room}),
		Layers:   e, Registries: registries, Room: room, Log: newLogger(),
	})
	if err != nil {
		return nil, nil, errors.Join(err, e.Close())
	}
	return s, func() error { return errors.Join(s.Close(), e.Close()) }, nil
}

func daemonOptions(o cli.ServeOptions) daemon.Options {
	return daemon.Options{
		Config: o.Config, ConfigFile: o.ConfigFile, Reload: o.Reload, Version: version.Version,
		InitPath: o.InitPath, InitError: o.InitError,
		StopSessions: o.StopSessions, Log: os.Stderr,
	}
}

// newLogger returns the logger for problems that are not the error of a call. Its lines have no time,
// because people read them as they appear.
func newLogger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{
		Level: slog.LevelWarn,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}
