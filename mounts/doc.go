// Package mounts owns the Mount value and what may be mounted where: its rules
// against escape, descriptor-based mounting, id-mapping, and attaching and
// detaching mounts in a running box.
//
// It does not know boxes, images or policies: callers hand in namespaces,
// directories and id maps as descriptors and values.
package mounts
