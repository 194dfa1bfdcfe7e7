// Package mcp tests the tools for language models with clients that speak the protocol for real: those of
// the official Go SDK, and foreign ones from npm.
package mcp
