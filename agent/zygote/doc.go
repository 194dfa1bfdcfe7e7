// Package zygote keeps an interpreter warm: a process that has imported what commands need,
// and forks children, spares, each of which becomes one command.
//
// The package is the protocol between PID 1 of a box and the zygote, and the zygote's
// program, which it runs itself (python.py). It starts no process and knows no cgroup.
//
//	agent                                   zygote (command + [-c loader])
//	  | control socket, SOCK_SEQPACKET, ControlFD of the zygote
//	  |-- Load: program; configuration -------->|  imports preload
//	  |<-------------------------- "ready" -----|  or one line that says why not, and its end
//	  |-- Fork: "spare" + 1 descriptor -------->|  forks twice
//	  |<-------------------------- "forked" -----|  or one line that says why not
//	                                        spare, child of PID 1
//	  | the spare's socket, SOCK_STREAM         |
//	  |<-- one byte + SCM_CREDENTIALS ----------|  it waits
//	  |-- Run: payload + 3 descriptors -------->|  sets itself up
//	  |<------------------------------ "0" -----|  and closes its socket; the command runs
//
// Instead of "0" a spare may answer "1": it executes the program, and the end of the socket
// says that this has worked; "STEP ERRNO\n", or "cold 0\n": it cannot become the command.
//
// The payload is u32 length of the rest, little endian, and NUL-terminated strings: the
// number of arguments, the number of variables, 1 or 0 for making the directory, the
// directory, arguments, variables. Numbers are decimal.
//
// A zygote and its spares run code of the box's user, so that everything they say may be a lie,
// and none of it decides more than whether a command starts warm: the kernel vouches for
// the process behind a spare (Spare.PID), and PID 1 reads the exit status.
package zygote
