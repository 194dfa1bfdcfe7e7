// Package cli is the command line of boxd: it parses flags, runs boxes or asks the daemon, and
// prints the results.
//
// It uses engines only through the interfaces of package engine. Package main passes in the
// engine, the daemon and the function that examines the host for the doctor.
package cli
