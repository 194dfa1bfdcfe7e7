// Package config reads the configuration of "boxd serve": defaults, a YAML file and
// the environment, in this order. Flags are put on top by the command line, which
// calls Validate afterwards.
//
// It opens nothing that it names: sockets, keys and directories are the daemon's.
package config
