// Package webhook tells HTTP servers that the operator names when a managed process or a session has
// ended. It is not for events in general, which clients read at GET /v1/events.
//
// # Delivery
//
// The manager of sessions stores a message for each receiver in the transaction that records the end
// (see [session.Outbox]), and the message stays until the receiver has answered with a 2xx status. So each
// end arrives at least once, also if the daemon is killed at any moment. A message that arrives twice has the same ID
// and the same body both times.
//
// Each receiver has a queue of its own and up to [parallel] requests under way, so a receiver that is slow or
// dead delays neither sessions nor other receivers. A message that is not taken is retried after 1 s,
// 2 s, 4 s and so on up to [lastPause]. While nothing at all is taken, one request at a time tries whether
// the receiver is back, at most [lastProbe] after the last one. When a queue is too large, the oldest messages of the tenant
// that has the most bytes in it are dropped, and each message when it is too old; that is counted and logged. Tenants
// take turns.
//
// # Requests
//
// A request is signed as Standard Webhooks 1.0.0 says
// (https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md):
//
//	POST /path HTTP/1.1
//	Content-Type: application/json
//	Webhook-Id: msg_…               the same at each attempt
//	Webhook-Timestamp: 1700000000   Unix time of the attempt
//	Webhook-Signature: v1,BASE64    of HMAC-SHA256 over "ID.TIMESTAMP.BODY", one for each secret
//
// Redirects are not followed.
package webhook
