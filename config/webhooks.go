package config

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// WebhookEvents are the types of events that webhooks tell of.
var WebhookEvents = []string{"process-exited", "process-stopped", "expired", "removed"}

// maxWebhooks bounds Config.Webhooks.
const maxWebhooks = 16

var webhookSyntax = onUse(`^[a-z0-9][a-z0-9_-]{0,31}$`)

// validateWebhooks checks the section webhooks.
func (c *Config) validateWebhooks() error {
	if len(c.Webhooks) > maxWebhooks {
		return refuse("webhooks", fmt.Sprintf("%d names", len(c.Webhooks)), fmt.Sprintf("must be at most %d", maxWebhooks))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Webhooks)) {
		if err := c.Webhooks[name].validate(name); err != nil {
			return err
		}
	}
	return nil
}

func (w Webhook) validate(name string) error {
	field := "webhooks." + name
	if !webhookSyntax().MatchString(name) {
		return refuse(field, spec.Quote(name), "must be 1 to 32 of a-z 0-9 _ -")
	}
	u, err := url.Parse(w.URL) // its path or query may be a secret
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.Fragment != "" {
		return refuse(field+".url", "(not shown)", "must be https://HOST/PATH or http://HOST/PATH, without a login")
	}
	switch s := w.Secret; {
	case (s.File == "") == (s.Env == ""):
		return refuse(field+".secret", spec.Quote(s.File+s.Env), "must have either file or env, where a secret such as whsec_BASE64 is read")
	case s.File != "":
		if err := validatePath(field+".secret.file", s.File); err != nil {
			return err
		}
	}
	for i, e := range w.Events {
		if !slices.Contains(WebhookEvents, e) {
			return refuse(fmt.Sprintf("%s.events[%d]", field, i), spec.Quote(e), "must be one of "+strings.Join(WebhookEvents, ", "))
		}
	}
	for i, t := range w.Tenants {
		if err := policy.ValidateTenant(t); err != nil {
			return refuse(fmt.Sprintf("%s.tenants[%d]", field, i), spec.Quote(t), "must be the name of a tenant; leave tenants out for all of them")
		}
	}
	// 0 stands for the default.
	for _, n := range []struct {
		key        string
		value      int64
		low, high  int64
		shown, may string
	}{
		{"timeout", int64(w.Timeout), int64(time.Second), int64(time.Minute), w.Timeout.String(), "1s to 1m"},
		{"max_age", int64(w.MaxAge), int64(time.Minute), int64(30 * 24 * time.Hour), w.MaxAge.String(), "1m to 720h"},
		{"queue_size", int64(w.QueueSize), 64 << 10, 1 << 30, w.QueueSize.String(), "64K to 1G"},
		{"rate", int64(w.Rate), 1, 1000, fmt.Sprint(w.Rate), "1 to 1000 per second"},
	} {
		if n.value != 0 && (n.value < n.low || n.value > n.high) {
			return refuse(field+"."+n.key, n.shown, "must be "+n.may)
		}
	}
	return nil
}

// PlainWebhooks returns the names of webhooks whose messages other hosts on the way can read.
func (c *Config) PlainWebhooks() (names []string) {
	for name, w := range c.Webhooks {
		if u, err := url.Parse(w.URL); err == nil && u.Scheme == "http" && !isLoopback(u.Hostname()) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// WebhookSources returns where the secrets of webhooks are read. The key is the one in the
// configuration file.
func (c *Config) WebhookSources() map[string]rules.Source {
	all := map[string]rules.Source{}
	for name, w := range c.Webhooks {
		all["webhooks."+name+".secret"] = w.Secret
	}
	return all
}
