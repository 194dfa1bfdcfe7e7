// Package packaging has what distributions install beside the programs: systemd units, users and
// directories, and the scripts of packages. It has no code, only tests that check these files; packaging/build
// makes packages of them.
package packaging
