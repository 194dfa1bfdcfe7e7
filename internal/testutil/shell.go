package testutil

// SignalLoop is the end of a shell's script that waits for signals, whose traps run at once. Dash forgets a
// signal that reaches it while it starts a program in the foreground: it starts those with vfork(2), and its
// handler does nothing until the child has called execve(2).
const SignalLoop = "while :; do sleep 1000 & wait; done"
