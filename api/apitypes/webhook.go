package apitypes

import "time"

// Webhook is the body of a request that tells of the end of a managed process or of a session.
type Webhook struct {
	Type      string      `json:"type" doc:"Type of the event."`
	Timestamp time.Time   `json:"timestamp" doc:"When it ended."`
	Data      WebhookData `json:"data"`
}

// WebhookData says what has ended. Its fields are those of Event, besides process.
type WebhookData struct {
	Tenant  string         `json:"tenant"`
	Session string         `json:"session" doc:"Id of the session."`
	Box     string         `json:"box,omitempty"`
	Process *Process       `json:"process,omitempty" doc:"The managed process, with as much of argv and ready.command as keep_argv of the profile says, up to 4 KiB each (what is longer ends in …), and without failure_output if keep_output is 0; absent: the session has ended."`
	Request string         `json:"request,omitempty" doc:"Id of the request that caused it."`
	Labels  Labels         `json:"labels,omitempty" doc:"Labels of the session and of the process."`
	Details map[string]any `json:"details,omitempty" doc:"As in the event of the same type."`
}

// WebhookState is the state of the deliveries to one receiver since the daemon started.
type WebhookState struct {
	Name      string     `json:"name"`
	Host      string     `json:"host" doc:"Host of its URL, with the port if the URL has one. The rest of the URL can be a secret."`
	Pending   int        `json:"pending" doc:"Messages that wait."`
	Bytes     int64      `json:"bytes" doc:"Size of their bodies."`
	Oldest    *time.Time `json:"oldest,omitempty" doc:"When that ended which the oldest of them is about; absent: none waits."`
	Delivered uint64     `json:"delivered" doc:"Messages that the receiver has taken."`
	Failed    uint64     `json:"failed" doc:"Attempts that have failed; each is repeated."`
	Dropped   uint64     `json:"dropped" doc:"Messages that were given up: too old, or displaced by newer ones."`
	Error     string     `json:"error,omitempty" doc:"Why the last attempt has failed; absent: it has not."`
}
