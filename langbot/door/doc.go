// Package door is how LangBot gets in: HTTP, who may connect, and the WebSocket
// connections that carry actions. It knows envelopes; what an action does is the
// business of its Backend.
//
//	GET /rpc/ws                                                  actions
//	GET /v1/sessions/PHYSICAL/managed-process[/PROCESS]/ws       relay of one process
//	GET /healthz, /readyz                                        for probes, without credentials
//
// Messages of clients may be compressed (RFC 7692, without context take-over), its own
// never are: what they would save on the wire is not worth what it costs a command that
// takes a millisecond.
package door
