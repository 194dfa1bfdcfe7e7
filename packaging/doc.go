// Package packaging holds what distributions install beside the programs: units,
// users, directories. Its tests check them; there is no code in it.
package packaging
