#include "textflag.h"

#define SYS_clone3     435
#define SYS_exit_group 231

// func clone3Exit(args *cloneArgs, size uintptr) int
//
// Between the two system calls only registers are used: the child must leave the
// stack, which it shares with its parent, as it is.
TEXT ·clone3Exit(SB), NOSPLIT, $0-24
	MOVQ args+0(FP), DI
	MOVQ size+8(FP), SI
	MOVQ $SYS_clone3, AX
	SYSCALL
	TESTQ AX, AX
	JNE  parent
	XORL DI, DI
	MOVQ $SYS_exit_group, AX
	SYSCALL
	INT  $3
parent:
	MOVQ AX, ret+16(FP)
	RET
