// Package openapi tests docs/openapi.json with tools from npm: redocly lints it, and a client that
// openapi-typescript generates from it uses a session.
package openapi
