//go:build !amd64

package vmtest

// tscKHz knows no frequency: kits are for amd64.
func tscKHz() int { return 0 }
