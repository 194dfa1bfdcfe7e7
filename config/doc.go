// Package config reads the configuration of "boxd serve": the defaults, then a YAML file,
// then the environment, each overriding the one before. The command line applies its flags
// on top and then calls Validate.
//
// The package does not open the sockets, keys and directories that the configuration names;
// the daemon does.
package config
