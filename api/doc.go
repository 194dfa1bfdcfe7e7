// Package api serves the HTTP API: it authenticates callers, decodes requests, writes
// answers, and describes all of that in an OpenAPI document. Package policy decides what a
// request may have, package session does it, and package relay carries the streams.
//
// Every route is a row of one table, routes, from which the router, the roles, the metrics
// and the OpenAPI document are made. Requests are decoded here and not by huma, which only
// describes the types: its handlers (v2.37) leave a read deadline on the connection, which
// cancels every request that takes longer; they repeat values of the request in errors; and
// they take 51 µs for an empty exec, for which this package takes 18 µs in all.
package api
