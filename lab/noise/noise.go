// Package noise holds the noisy neighbours: small kernels that each press on
// one resource, sized from the machine, with an intensity dial, each counting
// the work it got done.
package noise

// Config is what a neighbour's parent sends on its standard input.
type Config struct {
	// Kernel is one of Kernels().
	Kernel string `json:"kernel"`
	// Threads run the kernel, each on an OS thread of its own.
	Threads int `json:"threads"`
	// Intensity is the share of the time that each thread wants to work, in
	// percent (1-100). Below 100 it works in slices of at most 1 ms on absolute
	// deadlines and does not make up for time it was denied.
	Intensity int `json:"intensity"`
	// Bytes is the working set of one thread; 0 lets the kernel choose from
	// L2Bytes and L3Bytes (0 = unknown).
	Bytes   int64  `json:"bytes,omitempty"`
	L2Bytes int64  `json:"l2Bytes,omitempty"`
	L3Bytes int64  `json:"l3Bytes,omitempty"`
	Seed    uint64 `json:"seed"`
}
