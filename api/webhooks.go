package api

import (
	"encoding/json"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/session"
	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"
)

// WebhookBody returns the body of a webhook about an end.
func WebhookBody(e session.Ending) ([]byte, error) {
	w := apitypes.Webhook{Type: string(e.Type), Timestamp: e.Time.UTC(), Data: apitypes.WebhookData{
		Tenant: e.Tenant, Session: e.Session, Box: e.Box, Request: e.Request, Labels: e.Labels, Details: e.Details}}
	if e.Process != nil {
		p := processOf(e.Process)
		w.Data.Process = &p
	}
	return json.Marshal(w)
}

// describeWebhooks adds the webhooks to the document.
func describeWebhooks(doc *huma.OpenAPI, registry huma.Registry) {
	doc.Webhooks = map[string]*huma.PathItem{"ended": {Post: &huma.Operation{
		OperationID: "ended", Summary: "Tells that a managed process or a session has ended; docs/webhooks.md explains signature and retries",
		Security: []map[string][]string{{}},
		Parameters: []*huma.Param{
			{Name: "Webhook-Id", In: "header", Required: true, Description: "The same at each attempt.", Schema: &huma.Schema{Type: huma.TypeString}},
			{Name: "Webhook-Timestamp", In: "header", Required: true, Description: "Unix time of the attempt, in seconds.", Schema: &huma.Schema{Type: huma.TypeString}},
			{Name: "Webhook-Signature", In: "header", Required: true, Description: "Signatures by Standard Webhooks, separated by spaces: v1, and the base64 of HMAC-SHA256.", Schema: &huma.Schema{Type: huma.TypeString}},
		},
		RequestBody: &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/json": {Schema: schemaOf(registry, apitypes.Webhook{})}}},
		Responses:   map[string]*huma.Response{"2XX": {Description: "The message was taken. After any other answer it is sent again."}},
	}}}
}

// webhookFigure is a number about each receiver.
type webhookFigure struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*apitypes.WebhookState) float64
}

var webhookFigures = []webhookFigure{
	{describe("webhook_pending", "Messages that wait for a receiver.", "webhook"), prometheus.GaugeValue, func(w *apitypes.WebhookState) float64 { return float64(w.Pending) }},
	{describe("webhook_pending_bytes", "Size of the bodies of these messages.", "webhook"), prometheus.GaugeValue, func(w *apitypes.WebhookState) float64 { return float64(w.Bytes) }},
	{describe("webhook_delivered_total", "Messages that a receiver has taken.", "webhook"), prometheus.CounterValue, func(w *apitypes.WebhookState) float64 { return float64(w.Delivered) }},
	{describe("webhook_failed_total", "Attempts to deliver a message that have failed, and are repeated.", "webhook"), prometheus.CounterValue, func(w *apitypes.WebhookState) float64 { return float64(w.Failed) }},
	{describe("webhook_dropped_total", "Messages that were given up: too old, or displaced by newer ones.", "webhook"), prometheus.CounterValue, func(w *apitypes.WebhookState) float64 { return float64(w.Dropped) }},
}

func (c *collector) collectWebhooks(ch chan<- prometheus.Metric) {
	if c.s.opt.Webhooks == nil {
		return
	}
	for _, w := range c.s.opt.Webhooks() {
		for _, f := range webhookFigures {
			ch <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(&w), w.Name)
		}
	}
}
