package daemon

import (
	"context"
	"errors"
	"fmt"
	"github.com/boxd/boxd/config"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/boxd/boxd/api"
	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
	"github.com/boxd/boxd/session/history"
)

// These bound the wait for the launcher. If its socket exists, the launcher is being restarted, or is
// taking over its boxes.
const (
	connectPatience = 30 * time.Second
	missingPatience = 2 * time.Second // without a socket
)

// openUnprivileged gives up root and opens everything else. What clients and boxes can influence is
// never read with privileges.
func (d *daemon) openUnprivileged(ctx context.Context) (err error) {
	if err := d.dropRoot(); err != nil {
		return err
	}
	c := &d.Config
	if d.service, err = d.connect(ctx); err != nil {
		return err
	}
	if err := d.confine(); err != nil {
		return err
	}
	if d.audit, err = audit.Open(c.Audit.File, audit.Options{MaxBytes: int64(c.Audit.MaxSize), Keep: c.Audit.Keep, Sync: c.Audit.Sync}); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	d.checkSecrets()
	c.Policy.NetworkAvailable = c.Network == config.NetworkProxy // every box of package native is an engine.Networked
	decide, err := policy.New(c.Policy)
	if err != nil {
		return err
	}
	d.openImages(ctx)
	d.openWebhooks()
	metrics := api.NewMetrics()
	var sessionImages session.Images
	if d.images.store != nil {
		sessionImages = d.images.store
	}
	d.sessions, err = session.Open(ctx, session.Options{
		DB: filepath.Join(d.dirs.state, "boxd.db"), Workspaces: d.dirs.workspaces(), Lock: d.lock,
		Engine: d.service, Storage: d.service, Images: sessionImages, Policy: decide, Audit: d.audit, Logger: d.log, Egress: egress.Config{Host: d.surroundings(), Shared: egress.NewShared(networkFiles(d.files, filesNeeded(d.Config)))},
		OutputLimit: int64(c.Exec.OutputLimit), CaptureLimit: int64(c.Exec.CaptureLimit), History: int64(c.Relay.History),
		KeepEnded: c.Sessions.KeepEnded, MinFree: c.Sessions.MinFree, StopGrace: time.Duration(c.Sessions.StopGrace),
		ExecHistory: history.Options{SessionEntries: c.History.SessionEntries, SessionBytes: int64(c.History.SessionSize),
			TenantBytes: int64(c.History.TenantSize), Keep: c.History.Keep.D(), KeepUsage: c.History.KeepUsage.D()},
		Outbox: d.webhooks, Observe: metrics.ObserveExec, MetricLabels: c.HTTP.MetricLabels,
	})
	if err != nil {
		return fmt.Errorf("sessions: %w", err)
	}
	d.startImages()
	if err := d.openLangbot(decide.MountRoots(c.Langbot.Tenant)); err != nil {
		return err
	}
	previews, err := d.openPreviews()
	if err != nil {
		return err
	}
	d.server = api.New(api.Options{
		Sessions: d.sessions, Auth: d.auth, Version: d.Version, Logger: d.log,
		Warnings: d.statusWarnings, Webhooks: d.webhookStates, Images: d.images.store, AllowImage: decide.CheckImage, AllowPull: decide.CheckPull, Health: d.health, Doctor: d.doctor, Pool: d.service.Pool, Audit: d.audit, Metrics: metrics, Previews: previews,
		MaxBody: int64(c.HTTP.MaxBody), MaxFile: int64(c.HTTP.MaxFile), MaxTree: int64(c.HTTP.MaxTree), MaxConnections: c.HTTP.MaxConnections, MaxRelays: c.Relay.MaxClients,
		HeaderTimeout: time.Duration(c.HTTP.HeaderTimeout), IdleTimeout: time.Duration(c.HTTP.IdleTimeout), Scope: c.HTTP.Scope, MetricLabels: c.HTTP.MetricLabels,
		Others: append(d.langbot.others(c.Langbot.Tenant), d.openMCP(previews != nil)...), Langbot: d.langbot.health(),
	})
	d.endLeftMCP()
	return nil
}

// connect connects to the launcher service.
func (d *daemon) connect(ctx context.Context) (*native.Service, error) {
	socket := filepath.Join(d.dirs.runtime, native.SocketName)
	patience := connectPatience
	if _, err := os.Lstat(socket); errors.Is(err, fs.ErrNotExist) {
		patience = missingPatience
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := native.Connect(ctx, native.ServiceOptions{Socket: socket, Logger: d.log})
	if err != nil && !d.root {
		return nil, fmt.Errorf("launcher service at %q: %w: start boxd-launcher.service, or start boxd serve as root, which starts one", socket, err)
	}
	if err != nil {
		return nil, fmt.Errorf("launcher service at %q: %w", socket, err)
	}
	return s, nil
}
