// Package cli is the command line of boxd: flags in, boxes run, results out.
//
// It knows the engine only by its interfaces. Which engine there is, and how the
// doctor examines the host, is handed in by package main.
package cli
