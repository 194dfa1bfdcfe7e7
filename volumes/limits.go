package volumes

// The ranges of limits.
const (
	MinBytes  = 1 << 20 // an image needs room for a file system
	MaxBytes  = 4 << 40 // a file on ext4 has at most 16 TiB, and an image is larger than its content
	MinInodes = 16
	MaxInodes = 1 << 30

	block = 4096 // the block size of images; limits are multiples of it
)

// checkName checks that name is 1 to 64 of a-z, 0-9 and "-", the first not "-". So it is not
// a path, and with a suffix it cannot name another file in the data directory.
func checkName(name string) error {
	valid := len(name) >= 1 && len(name) <= 64 && name[0] != '-'
	for _, c := range []byte(name) {
		valid = valid && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-')
	}
	if !valid {
		return refuse("volume name", name, `must be 1 to 64 of a-z, 0-9 and "-", and not begin with "-"`)
	}
	return nil
}

// checkLimits returns the limits with bytes rounded up and the default for inodes filled in.
func checkLimits(bytes, inodes int64) (int64, int64, error) {
	if bytes < MinBytes || bytes > MaxBytes {
		return 0, 0, refuse("volume bytes", bytes, "must be %d to %d", int64(MinBytes), int64(MaxBytes))
	}
	bytes = (bytes + block - 1) / block * block
	if inodes == 0 {
		inodes = max(bytes>>14, 1024)
	}
	if inodes < MinInodes || inodes > MaxInodes {
		return 0, 0, refuse("volume inodes", inodes, "must be %d to %d, or 0 for one for each 16 KiB", MinInodes, MaxInodes)
	}
	return bytes, inodes, nil
}
