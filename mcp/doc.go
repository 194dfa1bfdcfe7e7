// Package mcp lets language models work in boxes, by the Model Context Protocol: tools that run
// commands and code, keep processes, and read and write files.
//
// It is a client of the daemon's API, so a tool can do nothing that its caller may not do there:
// roles, policy, quotas, rates, the audit log and the history are the API's. [Door] serves the protocol
// on HTTP, in the daemon, over connections of the daemon to itself; [ServeStdio] serves it on stdin and
// stdout, in boxd mcp, over the daemon's socket. Both have the same tools, of this package.
//
// The official Go SDK speaks the protocol. It negotiates the revisions from 2024-11-05 to 2026-07-28.
// Its handler for HTTP is either stateful, and speaks the revisions up to 2025-11-25, or stateless, and
// speaks the later ones; Door has one of each, and the header Mcp-Protocol-Version says which is meant.
//
// # Sessions
//
// A model never names a session or a path of the host. The session of a call follows from the
// template of the caller's token, of its profile, or of this door, and from the program that calls:
// see [Options]. The same caller and program continue in the same session, whatever happens to their
// connection.
package mcp
