//go:build !amd64

package main

// foreignCalls is empty: 64-bit code cannot make 32-bit ARM calls.
var foreignCalls map[string]map[string]func() int
