// Package door accepts LangBot's connections: HTTP, access control, and the WebSocket
// connections that carry actions. It knows the envelopes of messages; its Backend decides
// what an action does.
//
//	GET /rpc/ws                                                  actions
//	GET /v1/sessions/PHYSICAL/managed-process[/PROCESS]/ws       relay of one process
//	GET /healthz, /readyz                                        for probes, without credentials
//
// Messages of clients may be compressed (RFC 7692, without context take-over). Replies never
// are: for a command that takes a millisecond, compression costs more than it saves.
package door
