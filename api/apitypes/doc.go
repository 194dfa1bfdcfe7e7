// Package apitypes holds what the HTTP API takes and returns, as JSON. Server and
// client share it; it knows neither of the two, and holds no behaviour but how a
// value is written.
package apitypes
