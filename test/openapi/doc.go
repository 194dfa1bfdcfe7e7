// Package openapi has foreign tools from npm read docs/openapi.json: redocly lints it, and
// a session is driven by a client that openapi-typescript generated from it.
package openapi
