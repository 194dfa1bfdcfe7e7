// Package gvisor tests what is particular to boxes behind gVisor's kernel. What they have in common
// with all boxes is tested by engine/conformance.
package gvisor
