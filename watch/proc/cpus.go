package proc

import (
	"fmt"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// SchedCPUs reads /proc/schedstat again and again. It is for one goroutine at a time.
type SchedCPUs struct {
	file kernel.File
	buf  []byte
}

// OpenSchedCPUs opens the file of a proc file system. Without it it is a
// kernel.NotSupportedError.
func OpenSchedCPUs(proc string) (*SchedCPUs, error) {
	file, err := kernel.OpenFile(proc + "/schedstat")
	if err != nil {
		return nil, fmt.Errorf("open run delay of CPUs: %w", explainSched(err))
	}
	return &SchedCPUs{file: file}, nil
}

// Read appends the host's CPUWait, stamped with now: the time that threads waited for any
// CPU. A sample for each would be most of what there is on a large host.
func (c *SchedCPUs) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	text, buf, err := c.file.ReadAll(c.buf)
	c.buf = buf
	if err != nil {
		return to, fmt.Errorf("read run delay of CPUs: %w", err)
	}
	waited, err := waitOfCPUs(text)
	if err != nil {
		return to, fmt.Errorf("parse %s: %w", c.file.Path(), err)
	}
	return append(to, watch.Sample{Time: now, Quantity: watch.CPUWait, Value: waited}), nil
}

// Close closes the file.
func (c *SchedCPUs) Close() error { return c.file.Close() }
