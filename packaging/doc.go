// Package packaging has what distributions install beside the programs: systemd units, users and
// directories. It has no code, only tests that check these files.
package packaging
