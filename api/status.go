package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// healthTimeout bounds how long the engine may take to report its health. It may build a
// box first.
const healthTimeout = 8 * time.Second

// available returns nil if the daemon and its engine can serve. sick is the engine's error.
func (s *Server) available(sick error) error {
	if s.streams.Err() != nil {
		return errors.New("daemon: is being stopped")
	}
	if s.opt.Ready != nil {
		if err := s.opt.Ready(); err != nil {
			return fmt.Errorf("daemon: %w", err)
		}
	}
	if s.opt.Audit != nil {
		if err := s.opt.Audit.Healthy(); err != nil {
			return fmt.Errorf("audit log: %w", err)
		}
	}
	if sick != nil {
		return fmt.Errorf("engine: %w", sick)
	}
	return nil
}

func (s *Server) engineHealth(ctx context.Context) error {
	if s.opt.Health == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	return s.opt.Health(ctx)
}

// pool describes the engine's pool. It has no boxes while the launcher does not answer.
func (s *Server) pool(ctx context.Context) engine.PoolState {
	if s.opt.Pool == nil {
		return engine.PoolState{}
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	state, _ := s.opt.Pool(ctx) // the health of the engine has the error
	return state
}

func (c *call) healthz() error {
	c.w.Header().Set("Content-Type", plainText)
	_, err := io.WriteString(c.w, "ok\n")
	return err
}

func (c *call) readyz() error {
	if err := c.s.available(c.s.engineHealth(c.r.Context())); err != nil {
		return &refusal{code: apitypes.CodeUnavailable, detail: err.Error(), err: err}
	}
	return c.healthz()
}

func (c *call) status() error {
	s := apitypes.Status{Version: c.s.opt.Version, Uptime: apitypes.Duration(time.Since(c.s.started)), Engine: apitypes.Health{OK: true}}
	// Each may wait for the launcher, so they are asked at once.
	var sick error
	var pool engine.PoolState
	var asking sync.WaitGroup
	asking.Go(func() { sick = c.s.engineHealth(c.r.Context()) })
	asking.Go(func() { s.Engines = c.engines() })
	if c.who.all() {
		asking.Go(func() { pool = c.s.pool(c.r.Context()) })
	}
	asking.Wait()
	if sick != nil {
		s.Engine = apitypes.Health{Reason: sick.Error()}
	}
	for _, d := range engine.Differences {
		s.Capabilities = append(s.Capabilities, apitypes.Difference{Engine: d.Engine, Isolation: d.Isolation, Capability: d.Capability, Instead: d.Instead, Reason: d.Reason})
	}
	s.Previews = c.s.opt.Previews != nil
	err := c.s.available(sick)
	if s.Available = err == nil; err != nil {
		s.Reason = err.Error()
	}
	if c.s.opt.Langbot != nil {
		s.Langbot = &apitypes.Health{OK: true}
		ctx, cancel := context.WithTimeout(c.r.Context(), healthTimeout)
		if err := c.s.opt.Langbot(ctx); err != nil {
			s.Langbot = &apitypes.Health{Reason: "LangBot cannot use it now: callers of all tenants see why"}
			if c.who.all() { // the reason may name what belongs to a tenant
				s.Langbot.Reason = err.Error()
			}
		}
		cancel()
	}
	c.count(&s)
	use, limits := c.s.opt.Sessions.Quota(c.listTenant())
	used := policy.Quotas(use).Figures()
	for i, limit := range limits.Figures() {
		s.Quota = append(s.Quota, apitypes.QuotaUse{Name: limit.Name, Scope: scopeOf(c.listTenant()), Limit: limit.Value, InUse: used[i].Value})
	}
	if c.who.all() {
		if pool.Limit > 0 {
			s.Pool = &apitypes.Pool{Limit: pool.Limit, Wanted: pool.Wanted, Ready: pool.Ready, Hits: pool.Hits, Misses: pool.Misses}
		}
		if log := c.s.opt.Audit; log != nil {
			head := log.Head()
			s.Audit = &apitypes.AuditHead{Seq: head.Seq, Hash: head.Hash, OK: true}
			if err := log.Healthy(); err != nil {
				s.Audit.OK, s.Audit.Reason = false, err.Error()
			}
		}
		if c.s.opt.Warnings != nil {
			s.Warnings = c.s.opt.Warnings()
		}
		if c.s.opt.Webhooks != nil {
			s.Webhooks = c.s.opt.Webhooks()
		}
	}
	return c.reply(http.StatusOK, s)
}

func (c *call) doctor() error {
	found := apitypes.Doctor{OK: true}
	if c.s.opt.Doctor != nil {
		var err error
		if found, err = c.s.opt.Doctor(c.r.Context()); err != nil {
			return err
		}
	}
	found.Checks, found.OnHost = append([]apitypes.DoctorCheck{}, found.Checks...), append([]string{}, found.OnHost...) // never null
	return c.reply(http.StatusOK, found)
}

// engines lists the engines of sessions, nil while the launcher does not answer.
func (c *call) engines() (list []apitypes.EngineState) {
	ctx, cancel := context.WithTimeout(c.r.Context(), healthTimeout)
	defer cancel()
	states, _ := c.s.opt.Sessions.Engines(ctx) // the health of the engine has the error
	for _, e := range states {
		list = append(list, apitypes.EngineState{Engine: e.Engine, Isolation: e.Isolation, Available: e.Available(), Runtime: e.Runtime, Reason: e.Reason})
	}
	return list
}

// count fills in the numbers of what the caller may see.
func (c *call) count(s *apitypes.Status) {
	s.Sessions = map[string]int{}
	if c.tenant == AllTenants {
		stats := c.s.opt.Sessions.Stats()
		for state, n := range stats.States {
			s.Sessions[string(state)] = n
		}
		s.Processes, s.Execs = stats.ProcessesRunning, stats.ExecsRunning
		return
	}
	for _, v := range c.s.opt.Sessions.List(c.tenant) {
		s.Sessions[string(v.State)]++
		s.Processes += v.Processes
		s.Execs += v.Execs
	}
}

// errors lists the recent errors. Errors that belong to no tenant are for callers who may
// see all tenants.
func (c *call) errors() error {
	list := apitypes.ErrorList{Errors: []apitypes.ErrorRecord{}}
	for _, e := range c.s.opt.Sessions.Errors() {
		if c.tenant == AllTenants || e.Tenant == c.tenant || (e.Tenant == "" && c.who.all()) {
			list.Errors = append(list.Errors, apitypes.ErrorRecord(e))
		}
	}
	return c.reply(http.StatusOK, list)
}

// networkOf leaves out upstream proxies and the sources of secrets: only the operator sees them.
func networkOf(r rules.Rules) apitypes.ProfileNetwork {
	n := apitypes.ProfileNetwork{Allow: r.Allow, Deny: r.Deny, Public: r.Public, Limits: r.Limits}
	for _, in := range r.Inject {
		n.Inject = append(n.Inject, apitypes.InjectedHeader{Host: in.Host, Header: in.Header})
	}
	return n
}

func (c *call) profiles() error {
	list := apitypes.ProfileList{Profiles: []apitypes.Profile{}}
	if c.tenant != AllTenants {
		list.Default = c.s.opt.Sessions.DefaultProfile(c.tenant)
	}
	for _, p := range c.s.opt.Sessions.Profiles() {
		languages := []apitypes.Language{}
		for _, name := range slices.Sorted(maps.Keys(p.CodeLanguages)) {
			l := p.CodeLanguages[name]
			languages = append(languages, apitypes.Language{Name: name, Command: l.Command, File: l.File})
		}
		list.Profiles = append(list.Profiles, apitypes.Profile{
			Name: p.Name, Settings: p.Settings, Engines: p.Engines, Zygotes: p.Zygotes, Images: p.Images, ImageDigests: p.ImageDigests, AllowNetwork: p.AllowNetwork,
			NetworkRules: networkOf(p.NetworkRules),
			AllowPublish: p.AllowPublish, AllowPersistent: p.AllowPersistent, Scope: p.Scope,
			KeepArgv: p.KeepArgv, KeepOutput: p.KeepOutput,
			Caps: p.Caps, Locked: append([]string{}, p.Locked...), Languages: languages, // never null
		})
	}
	return c.reply(http.StatusOK, list)
}
