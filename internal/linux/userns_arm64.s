#include "textflag.h"

#define SYS_clone3     435
#define SYS_exit_group 94

// func clone3Exit(args *cloneArgs, size uintptr) int
//
// Between the two system calls only registers are used: the child must leave the
// stack, which it shares with its parent, as it is.
TEXT ·clone3Exit(SB), NOSPLIT, $0-24
	MOVD args+0(FP), R0
	MOVD size+8(FP), R1
	MOVD $SYS_clone3, R8
	SVC
	CBNZ R0, parent
	MOVD $0, R0
	MOVD $SYS_exit_group, R8
	SVC
	BRK
parent:
	MOVD R0, ret+16(FP)
	RET
