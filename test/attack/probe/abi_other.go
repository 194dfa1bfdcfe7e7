//go:build !amd64

package main

// foreignCalls: 32-bit ARM calls cannot be made from 64-bit code.
var foreignCalls map[string]map[string]func() int
