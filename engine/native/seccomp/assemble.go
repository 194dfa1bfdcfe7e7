package seccomp

import (
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data. Its 64-bit arguments begin with their low word on
// little-endian machines.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func ret(v verdict) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: uint32(v)}
}

// jump compares with k and skips jt instructions if that holds, otherwise jf.
func jump(op uint16, k uint32, jt, jf uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, Jt: jt, Jf: jf, K: k}
}

// tree finds the span of the loaded call number by bisection and returns its
// verdict. spans is sorted and covers every number from its first on.
func tree(spans []span) []unix.SockFilter {
	if len(spans) == 1 {
		if s := spans[0]; s.check == nil {
			return []unix.SockFilter{ret(s.verdict)}
		}
		return compileCheck(spans[0].check)
	}
	mid := len(spans) / 2
	below, above := tree(spans[:mid]), tree(spans[mid:])
	var p []unix.SockFilter
	if n := len(below); n <= 255 {
		p = append(p, jump(unix.BPF_JGE, spans[mid].from, uint8(n), 0))
	} else {
		// A conditional jump has offsets of one byte, BPF_JA a larger one.
		p = append(p, jump(unix.BPF_JGE, spans[mid].from, 0, 1),
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(n)})
	}
	return append(append(p, below...), above...)
}

// compileCheck tries the rules in order.
func compileCheck(c check) []unix.SockFilter {
	var p []unix.SockFilter
	for _, r := range c {
		p = append(p, compileRule(r)...)
	}
	return p
}

// compileRule returns the verdict if all conditions hold, and otherwise falls through to
// the next rule.
func compileRule(r rule) []unix.SockFilter {
	p := []unix.SockFilter{ret(r.verdict)}
	for i := len(r.conds) - 1; i >= 0; i-- {
		p = append(compileCond(r.conds[i], len(p)), p...)
	}
	return p
}

// compileCond falls through if c holds, and otherwise skips the next rest instructions.
func compileCond(c cond, rest int) []unix.SockFilter {
	offset := uint32(offsetArgs + 8*c.arg)
	if c.high {
		offset += 4
	}
	p := []unix.SockFilter{load(offset)}
	if c.mask != all {
		p = append(p, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: c.mask})
	}
	for i, v := range c.in {
		left := len(c.in) - 1 - i // comparisons that follow this one
		hit, miss := left, 0
		if left == 0 {
			miss = rest
		}
		if c.not {
			hit, miss = left+rest, 0
		}
		p = append(p, jump(unix.BPF_JEQ, v, uint8(hit), uint8(miss)))
	}
	return p
}
