package relay

import "encoding/binary"

func appendOffset(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(v))
}

func appendText(b []byte, s string) []byte {
	s = s[:min(len(s), maxText)]
	return append(append(b, byte(len(s))), s...)
}

func appendHello(b []byte, h Hello) []byte {
	var flags byte
	for i, set := range []bool{h.Writer, h.TTY, h.HasStdin, h.HasStderr, h.Interrupted} {
		if set {
			flags |= 1 << i
		}
	}
	b = append(b, typeHello, version, flags, 0)
	b = appendOffset(b, h.StdinAccepted)
	b = binary.BigEndian.AppendUint32(b, uint32(h.StdinWindow))
	b = binary.BigEndian.AppendUint32(b, uint32(h.Window))
	for _, s := range []Bounds{h.Stdout, h.Stderr} {
		b = appendOffset(appendOffset(appendOffset(b, s.Oldest), s.End), s.Start)
	}
	return b
}

// putData writes the header of a Data frame to the start of b.
func putData(b []byte, s Stream, off int64) {
	b[0], b[1] = typeData, byte(s)
	binary.BigEndian.PutUint64(b[2:], uint64(off))
}

func appendGap(b []byte, g Gap) []byte {
	b = append(b, typeGap, byte(g.Stream))
	return appendOffset(appendOffset(b, g.From), g.To)
}

func appendStdinState(b []byte, s StdinState) []byte {
	var flags byte
	if s.Closed {
		flags = flagClosed
	}
	return appendOffset(append(b, typeStdinAck, flags), s.Accepted)
}

func appendExit(b []byte, f exitFrame) []byte {
	b = append(b, typeExit)
	b = binary.BigEndian.AppendUint16(b, uint16(int16(f.Code)))
	b = append(b, byte(f.Signal))
	b = appendOffset(appendOffset(b, f.stdout), f.stderr)
	return appendText(appendText(b, f.Verdict), f.Limit)
}

func appendAck(b []byte, s Stream, off int64) []byte {
	return appendOffset(append(b, typeAck, byte(s)), off)
}
