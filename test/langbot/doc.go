// Package langbot speaks LangBot's Box Runtime protocol as LangBot's own client does,
// to a real daemon with real boxes: for tests and benchmarks that look at the door
// from outside.
package langbot
