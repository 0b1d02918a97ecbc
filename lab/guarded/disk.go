package guarded

import (
	"errors"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/lab/disk"
)

// The disk of the fault IO: slow enough that a few readers keep it busy with little of
// a CPU. Alone the tenant waits for it 0.2 ms in each of 50 reads per second; beside
// the readers it waits for theirs, of 4 ms each.
const (
	diskBytes   = 256 << 20
	diskReaders = 4
	// diskEvery is how many requests of the tenant there are to each that reads.
	diskEvery = 20
)

func diskSpeed() disk.Speed {
	return disk.Speed{Seek: 100 * time.Microsecond, BytesPerSecond: 32 << 20}
}

// needDisk makes the disk, which stays until the end of the experiment.
func (r *runner) needDisk() error {
	if r.disk != nil {
		return nil
	}
	d, err := disk.Open(diskBytes, diskSpeed())
	var no *disk.Unsupported
	if errors.As(err, &no) {
		return &kernel.NotSupportedError{Feature: "a disk of the lab's own", Reason: no.Error(), Remedy: no.Remedy}
	}
	if err != nil {
		return err
	}
	undo, err := r.stage.CountIO(d.Number())
	if err != nil {
		return errors.Join(err, d.Close())
	}
	r.disk = d
	r.removeDisk = func() error { return errors.Join(undo(), d.Close()) }
	return nil
}
