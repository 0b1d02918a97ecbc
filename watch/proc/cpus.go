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
	all  []SchedCPU
}

// OpenSchedCPUs opens the file of a proc file system. Without it it is a
// kernel.NotSupportedError.
func OpenSchedCPUs(proc string) (*SchedCPUs, error) {
	dir, err := kernel.OpenDir(proc)
	if err != nil {
		return nil, fmt.Errorf("open run delay of CPUs: %w", err)
	}
	defer dir.Close()
	file, err := dir.Open("schedstat")
	if err != nil {
		return nil, fmt.Errorf("open run delay of CPUs: %w", explainSched(err))
	}
	return &SchedCPUs{file: file}, nil
}

// Times reads the file. The result is good until the next reading.
func (c *SchedCPUs) Times() ([]SchedCPU, error) {
	text, buf, err := c.file.ReadAll(c.buf)
	c.buf = buf
	if err != nil {
		return nil, fmt.Errorf("read run delay of CPUs: %w", err)
	}
	all, err := appendCPUs(c.all[:0], text)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", c.file.Path(), err)
	}
	c.all = all
	return all, nil
}

// Read appends the host's CPUWait, stamped with now: the time that threads waited
// for any CPU and, if each is asked for, for each.
func (c *SchedCPUs) Read(now watch.Time, each bool, to []watch.Sample) ([]watch.Sample, error) {
	all, err := c.Times()
	if err != nil {
		return to, err
	}
	sum := 0.0
	for _, cpu := range all {
		wait := cpu.Waited.Seconds()
		sum += wait
		if each {
			subject := watch.Subject{Part: watch.Part{Kind: watch.CPU, ID: cpu.ID}}
			to = append(to, watch.Sample{Time: now, Subject: subject, Quantity: watch.CPUWait, Value: wait})
		}
	}
	return append(to, watch.Sample{Time: now, Quantity: watch.CPUWait, Value: sum}), nil
}

// Close closes the file.
func (c *SchedCPUs) Close() error { return c.file.Close() }
