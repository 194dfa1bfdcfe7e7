// Package api is the HTTP door: who asks, what shape a request and an answer have,
// and the description of it all. What may be done is decided by package policy, and
// done by package session; a stream is carried by package relay.
//
// Every route is a row of one table, routes; the router, the roles, the metrics and
// the OpenAPI document are made from it. Requests are decoded here and not by huma,
// which only describes the types: its handlers (v2.37) leave a read deadline on the
// connection that cancels each request that takes longer, repeat values of a request
// in errors, and took 51 µs for an empty exec, where everything here takes 18 µs.
package api
