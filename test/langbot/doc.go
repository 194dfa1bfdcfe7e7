// Package langbot is a client of LangBot's Box Runtime protocol that behaves like LangBot's
// own. Tests and benchmarks use it with a real daemon and real boxes.
package langbot
