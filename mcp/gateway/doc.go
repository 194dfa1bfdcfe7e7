// Package gateway runs MCP servers that speak on stdin and stdout in boxes, and serves them as
// streamable HTTP.
//
// Like package mcp it is a client of the daemon's API: a server is a managed process of a session, with
// the rights, quotas and profiles of whoever asked for it first, and lives on when the daemon is killed.
//
//	client ── HTTP ── Gateway ── relay ── managed process in a box
//
// Messages pass as they are: methods, parameters and results that this package does not know included.
// Only what has to be unique at the process is replaced, and put back in what the process answers: the
// IDs of requests, progress tokens, and the IDs that cancellations name.
//
// # Failures
//
// A request that cannot be answered gets an error of JSON-RPC whose data is a [Failure]: the phase in
// which the server failed, how its process ended, and the last lines that it wrote to stderr.
package gateway
