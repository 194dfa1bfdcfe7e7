// Package mounts decides what may be mounted where, and mounts it: it checks sources against
// escapes, which needs the kernel, creates ID-mapped mounts, and attaches mounts to running
// boxes and detaches them, all by descriptor. The type that describes a mount, and the rules
// that need no kernel, are in package engine/spec.
//
// The package does not know boxes, images or policies: callers pass namespaces,
// directories and ID maps as descriptors and values.
package mounts
