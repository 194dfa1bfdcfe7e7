// Package api is the HTTP door: who asks, what shape a request and an answer have,
// and the description of it all. What may be done is decided by package policy, and
// done by package session; a stream is carried by package relay.
//
// Every route is a row of one table ([routes]); the router, the roles, the metrics
// and the OpenAPI document are made from it. Requests are decoded by hand and not by
// huma, which only describes the types: its handlers leave a read deadline on the
// connection that would cancel every request that takes longer, repeat values of a
// request in errors, and cost an exec more than the rest of its way here.
package api
