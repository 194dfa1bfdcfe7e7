package daemon

import (
	"fmt"
	"maps"
	"slices"

	"github.com/boxd/boxd/api"
	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/session"
	"github.com/boxd/boxd/webhook"
)

// openWebhooks makes what tells receivers of the ends of processes and sessions. Without receivers
// it only drops what waits for earlier ones.
func (d *daemon) openWebhooks() {
	o := webhook.Options{Body: api.WebhookBody, UserAgent: "boxd/" + d.Version, Logger: d.log}
	for _, name := range slices.Sorted(maps.Keys(d.Config.Webhooks)) {
		w := d.Config.Webhooks[name]
		r := webhook.Receiver{Name: name, URL: w.URL, Tenants: w.Tenants, Timeout: w.Timeout.D(), Rate: w.Rate, QueueSize: int64(w.QueueSize), MaxAge: w.MaxAge.D(),
			Secrets: func() ([][]byte, error) {
				text, err := egress.ReadSecret(w.Secret)
				if err != nil {
					return nil, err
				}
				return webhook.ParseSecrets(text)
			}}
		for _, e := range w.Events {
			r.Events = append(r.Events, session.EventType(e))
		}
		o.Receivers = append(o.Receivers, r)
	}
	for _, name := range d.Config.PlainWebhooks() {
		warning := fmt.Sprintf("webhooks.%s.url: begins with http://, so that others can read the messages on their way: use https://", name)
		d.log.Warn(warning)
		d.warnings = append(d.warnings, warning)
	}
	d.webhooks = webhook.New(o)
}

// webhookStates is for the status and the metrics.
func (d *daemon) webhookStates() (list []apitypes.WebhookState) {
	for _, s := range d.webhooks.States() {
		w := apitypes.WebhookState{Name: s.Name, Host: s.Host, Pending: s.Pending, Bytes: s.Bytes, Delivered: s.Delivered, Failed: s.Failed, Dropped: s.Dropped, Error: s.Error}
		if s.Pending > 0 {
			w.Oldest = &s.Oldest
		}
		list = append(list, w)
	}
	return list
}
