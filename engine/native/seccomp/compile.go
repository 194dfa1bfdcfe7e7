package seccomp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// arch holds the differences between architectures.
type arch struct {
	audit  uint32 // AUDIT_ARCH_*
	number func(call) int
}

var arches = map[string]arch{
	"amd64": {unix.AUDIT_ARCH_X86_64, func(c call) int { return c.amd64 }},
	"arm64": {unix.AUDIT_ARCH_AARCH64, func(c call) int { return c.arm64 }},
}

// Compile returns the filter of a box as an array of struct sock_filter, eight
// bytes each, for the architecture of this program. It is meant to be installed
// once, by the agent on itself, and inherited by every command.
func Compile() ([]byte, error) { return compile(arch.program) }

// compile encodes a program for the architecture of this program.
func compile(program func(arch) []unix.SockFilter) ([]byte, error) {
	a, ok := arches[runtime.GOARCH]
	if !ok {
		return nil, fmt.Errorf("architecture %q has no system call policy: amd64 and arm64 do", runtime.GOARCH)
	}
	var b bytes.Buffer
	// The kernel reads both architectures' instructions as little-endian. A bytes.Buffer
	// does not fail, and SockFilter has a fixed size.
	_ = binary.Write(&b, binary.LittleEndian, program(a))
	return b.Bytes(), nil
}

// program is the filter of a box.
func (a arch) program() []unix.SockFilter { return a.boxProgram(checked) }

func (a arch) boxProgram(byArguments []checkedCall) []unix.SockFilter {
	spans := a.spans(slices.Concat(allowedFiles, allowedProcess), refused, byArguments)
	return a.assemble(append(spans, span{from: ^uint32(0), verdict: allow}))
}

// assemble makes a filter of spans. It checks the architecture first, because on
// another one the same numbers mean other calls.
func (a arch) assemble(spans []span) []unix.SockFilter {
	return append([]unix.SockFilter{
		load(offsetArch),
		jump(unix.BPF_JEQ, a.audit, 1, 0),
		ret(kill),
		load(offsetNumber),
	}, tree(spans)...)
}

// span is a range of call numbers, up to the next span, that are treated alike.
type span struct {
	from uint32
	verdict
	check check // decides instead of the verdict unless nil
}

// x32Bit marks the calls of the x32 ABI, which the kernel reports with the same
// AUDIT_ARCH as 64-bit ones. No other architecture has numbers that high.
const x32Bit = 0x40000000

// spans orders a policy by call numbers, from 0 to the highest.
func (a arch) spans(allowed, refused []group, checked []checkedCall) []span {
	single := map[uint32]span{}
	add := func(c call, v verdict, ch check) {
		if nr := a.number(c); nr >= 0 {
			single[uint32(nr)] = span{uint32(nr), v, ch}
		}
	}
	for _, g := range allowed {
		for _, c := range g.calls {
			add(c, allow, nil)
		}
	}
	for _, g := range refused {
		for _, c := range g.calls {
			add(c, eperm, nil)
		}
	}
	for _, c := range checked {
		add(c.call, 0, c.check)
	}
	return append(merge(single), span{from: x32Bit, verdict: kill}, span{from: 1 << 31, verdict: enosys})
}

// merge turns single calls into spans, with ENOSYS for numbers without a call.
func merge(single map[uint32]span) []span {
	highest := uint32(0)
	for nr := range single {
		highest = max(highest, nr)
	}
	var spans []span
	for nr := range highest + 2 {
		s, ok := single[nr]
		if !ok {
			s = span{from: nr, verdict: enosys}
		}
		if n := len(spans); n > 0 && s.check == nil && spans[n-1].check == nil && spans[n-1].verdict == s.verdict {
			continue
		}
		spans = append(spans, s)
	}
	return spans
}
