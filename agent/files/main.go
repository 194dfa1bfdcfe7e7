package files

// Main carries out the operation that args ask for and returns the exit status.
func Main(args []string) int { return 1 }
