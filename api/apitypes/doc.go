// Package apitypes has the types of the HTTP API's requests and answers in JSON. Server and
// client share them. The package depends on neither, and its only behaviour is how values
// are encoded.
package apitypes
