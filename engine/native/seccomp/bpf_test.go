package seccomp

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// data is struct seccomp_data, the input of a filter.
type data struct {
	nr   uint32
	arch uint32
	ip   uint64
	args [6]uint64
}

func (d data) bytes() []byte {
	b := binary.LittleEndian.AppendUint32(nil, d.nr)
	b = binary.LittleEndian.AppendUint32(b, d.arch)
	b = binary.LittleEndian.AppendUint64(b, d.ip)
	for _, a := range d.args {
		b = binary.LittleEndian.AppendUint64(b, a)
	}
	return b
}

func decode(program []byte) []unix.SockFilter {
	var p []unix.SockFilter
	for i := 0; i+8 <= len(program); i += 8 {
		p = append(p, unix.SockFilter{
			Code: binary.LittleEndian.Uint16(program[i:]),
			Jt:   program[i+2], Jf: program[i+3],
			K: binary.LittleEndian.Uint32(program[i+4:]),
		})
	}
	return p
}

// run interprets the part of classic BPF that the compiler uses, and nothing
// else: an unknown instruction, a jump out of the program or a load out of the
// data is an error, as it is to the kernel. steps is the number of instructions
// that were executed.
func run(p []unix.SockFilter, d data) (v verdict, steps int, err error) {
	mem := d.bytes()
	acc := uint32(0)
	for pc := 0; pc < len(p); pc++ {
		in := p[pc]
		steps++
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			if int(in.K)+4 > len(mem) || in.K%4 != 0 {
				return 0, steps, fmt.Errorf("instruction %d: loading offset %d", pc, in.K)
			}
			acc = binary.LittleEndian.Uint32(mem[in.K:])
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			acc &= in.K
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(in.K)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			pc += branch(acc == in.K, in)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			pc += branch(acc >= in.K, in)
		case unix.BPF_RET | unix.BPF_K:
			return verdict(in.K), steps, nil
		default:
			return 0, steps, fmt.Errorf("instruction %d: unknown code %#x", pc, in.Code)
		}
	}
	return 0, steps, fmt.Errorf("running off the end after %d steps", steps)
}

func branch(holds bool, in unix.SockFilter) int {
	if holds {
		return int(in.Jt)
	}
	return int(in.Jf)
}

// String is the verdict for people and golden files.
func (v verdict) String() string {
	switch {
	case v == allow:
		return "allow"
	case v == kill:
		return "kill"
	case v == ask:
		return "ask"
	case v == pretend:
		return "pretend"
	case v&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_ERRNO:
		return unix.ErrnoName(unix.Errno(v & unix.SECCOMP_RET_DATA))
	}
	return fmt.Sprintf("%#x", uint32(v))
}
